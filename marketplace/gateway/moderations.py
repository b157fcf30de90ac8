"""`POST /v1/moderations` in OpenAI's form: guards judge texts, each piece a metered prediction of the caller's.

The one category is `prompt_injection`: it is what the platform's guard was trained and measured for.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import orjson

from marketplace.gateway.asks import Asked
from marketplace.gateway.errors import bad_request, model_named, require_fields
from marketplace.gateway.json_bodies import json_object
from marketplace.guards.attacks import MOST_PIECES, pieces_of, probability
from protocol.messages import PREDICTION_EXTRA_KEY
from protocol.names import ModelName

CATEGORY = "prompt_injection"
DEFAULT_GUARD = "intarsia/guard"
# Clients send OpenAI's own names when their user names none.
OPENAI_NAMES = ("omni-moderation", "text-moderation")


@dataclass(frozen=True)
class ModerationRequest:
    """The guard that is asked, and for each input the pieces that it reads."""

    guard: ModelName
    inputs: tuple[tuple[str, ...], ...]

    @property
    def pieces(self) -> list[str]:
        """Return the pieces of all inputs, one after the other."""
        return [piece for pieces in self.inputs for piece in pieces]


def parse_moderation_request(body: bytes) -> ModerationRequest:
    """Raise Refusal 400 naming the field."""
    data = json_object(body)
    require_fields("moderations", data)
    inputs = tuple(tuple(pieces_of(text)) for text in _texts(data.get("input")))
    if sum(len(pieces) for pieces in inputs) > MOST_PIECES:
        raise bad_request(f"The input is too long: at most {MOST_PIECES * 500:,} characters at once.", "input")
    return ModerationRequest(_guard(data.get("model")), inputs)


def _guard(name: object) -> ModelName:
    if name is None or (isinstance(name, str) and name.startswith(OPENAI_NAMES)):
        name = DEFAULT_GUARD
    return model_named(name)


def _texts(given: object) -> list[str]:
    """Return the texts of `input`: a text, texts, or parts of which every one is a text."""
    items = given if isinstance(given, list) else [given]
    texts = [item.get("text") if isinstance(item, dict) and item.get("type") == "text" else item for item in items]
    if not texts or len(texts) > MOST_PIECES or not all(isinstance(text, str) and text for text in texts):
        raise bad_request(
            f"`input` must be a text, or a list of 1 to {MOST_PIECES} texts; images are not read.", "input"
        )
    return [str(text) for text in texts]


def moderation_answer(request: ModerationRequest, asked: list[Asked[float]]) -> bytes:
    """Return the JSON answer; `asked` has the log-odds of `request.pieces`, one by one."""
    results, at = [], 0
    for pieces in request.inputs:
        score = probability(max(one.read for one in asked[at : at + len(pieces)]))
        at += len(pieces)
        results.append(
            {
                "flagged": score > 0.5,
                "categories": {CATEGORY: score > 0.5},
                "category_scores": {CATEGORY: score},
                "category_applied_input_types": {CATEGORY: ["text"]},
            }
        )
    costs = [one.cost_nano_usd for one in asked]
    about = {
        "prediction_ids": [one.prediction_id for one in asked],
        "cost_nano_usd": None if None in costs else sum(cost for cost in costs if cost is not None),
    }
    body = {"id": f"modr-{uuid.uuid4()}", "model": str(request.guard), "results": results, PREDICTION_EXTRA_KEY: about}
    return orjson.dumps(body)
