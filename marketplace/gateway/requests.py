"""The priced part of a request body. The body itself is judged by `protocol.requests`, as every replica judges it.

It is forwarded byte for byte, unless a policy masks it (`guarding.py`); the ticket carries its hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from marketplace.gateway.bounds import chat_bound, prompt_bounds
from marketplace.gateway.errors import bad_request, model_named
from marketplace.gateway.json_bodies import refused_by_body
from protocol.latency import CLASS_OF_TIER, LatencyClass
from protocol.names import ModelName
from protocol.requests.bodies import AnyBody, ChatBody, CompletionBody, EmbeddingBody, GenerationBody
from protocol.requests.checks import require_end_user
from protocol.requests.parsing import read_json, typed

DEFAULT_MAX_TOKENS = 512  # of a request that names no limit, for a model without a contract; documented in docs/api.md
END_USER_HEADER = "x-intarsia-end-user"
ON_BUDGET_HEADER = "x-intarsia-on-budget"

OnBudget = Literal["refuse", "stop"]


@dataclass(frozen=True, repr=False)  # its body is a customer's prompt
class PredictionRequest:
    """The priced part of a completion request.

    `body`: as it was parsed. `max_tokens`: of one completion; None: the request names no limit. `choices`: completions
    of each prompt, or beams, that are computed: all of them are paid for, whatever is returned.
    `prompt_token_bounds`: for each prompt, an upper bound of its tokens (`marketplace.gateway.bounds`).
    `end_user`: the caller's name for whom it asks; its spending is counted and limited by that name.
    `on_budget`: whether a budget that cannot pay the worst case refuses the request, or stops the answer where it ends.
    """

    model: ModelName
    body: AnyBody
    max_tokens: int | None
    choices: int
    prompt_token_bounds: tuple[int, ...]
    stream: bool = False
    include_usage: bool = False
    latency_class: LatencyClass = "standard"
    end_user: str | None = None
    on_budget: OnBudget = "refuse"

    @property
    def embedding(self) -> bool:
        """Return whether vectors are wanted, no text."""
        return isinstance(self.body, EmbeddingBody)

    def worst_prompt_tokens(self, context_length: int, instruction_tokens: int = 0) -> int:
        """Return the most prompt tokens that a model of this context can be made to read: a prompt counts once.

        `instruction_tokens` are those that the model's contract puts before each chat.
        """
        return sum(min(bound + instruction_tokens, context_length) for bound in self.prompt_token_bounds)

    @property
    def completions(self) -> int:
        return len(self.prompt_token_bounds) * self.choices

    def worst_tokens(self, context_length: int, default: int = DEFAULT_MAX_TOKENS) -> int:
        """Return the most tokens that can be generated, over all completions of all prompts.

        `default` is the model's limit of one completion, for a request that names none.
        """
        return self.completions * min(default if self.max_tokens is None else self.max_tokens, context_length)


def parse_prediction_request(
    body: bytes, headers: Mapping[bytes, bytes], *, chat: bool, embedding: bool = False
) -> PredictionRequest:
    """Raises Refusal 400 naming the field or header."""
    with refused_by_body():
        data = read_json(body)
        if embedding:
            return _embedding_request(typed(data, EmbeddingBody), headers)
        if chat:
            return _completion_request(typed(data, ChatBody), (chat_bound(data),), headers)
        asked = typed(data, CompletionBody)
        return _completion_request(asked, prompt_bounds(asked.prompt), headers)


def _completion_request(
    body: GenerationBody, bounds: tuple[int, ...], headers: Mapping[bytes, bytes]
) -> PredictionRequest:
    newer = body.max_completion_tokens if isinstance(body, ChatBody) else None
    return PredictionRequest(
        model=model_named(body.model),
        body=body,
        stream=bool(body.stream),
        include_usage=body.include_usage,
        max_tokens=body.max_tokens if newer is None else newer,
        choices=body.computed,
        prompt_token_bounds=bounds,
        latency_class=CLASS_OF_TIER[body.service_tier],
        end_user=_end_user(body, headers),
        on_budget=_on_budget(headers),
    )


def _embedding_request(body: EmbeddingBody, headers: Mapping[bytes, bytes]) -> PredictionRequest:
    return PredictionRequest(
        model=model_named(body.model),
        body=body,
        max_tokens=0,
        choices=1,
        prompt_token_bounds=prompt_bounds(body.input),
        latency_class=CLASS_OF_TIER[body.service_tier],
        end_user=_end_user(body, headers),
    )


def _end_user(body: AnyBody, headers: Mapping[bytes, bytes]) -> str | None:
    """Return whom the caller asks for: the header's word before those of the body. Raises RequestRefused."""
    raw = headers.get(END_USER_HEADER.encode())
    if raw is not None:
        # Bytes that are no UTF-8 become characters that are not printable.
        name = raw.decode("utf-8", "surrogateescape")
        require_end_user(name, END_USER_HEADER)
        return name
    return body.safety_identifier if body.safety_identifier is not None else body.user


def _on_budget(headers: Mapping[bytes, bytes]) -> OnBudget:
    match headers.get(ON_BUDGET_HEADER.encode(), b"refuse"):
        case b"refuse":
            return "refuse"
        case b"stop":
            return "stop"
    raise bad_request(f"`{ON_BUDGET_HEADER}` must be refuse or stop.", ON_BUDGET_HEADER)
