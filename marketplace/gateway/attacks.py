"""A guard's verdict on a text: how likely it is that the text tries to give a model other instructions.

A guard is a model like any other whose contract answers with one word, `attack` or `safe`, and opens its logprobs. It
reads a text in overlapping pieces of the length that it was trained on; the worst piece counts.
"""

from __future__ import annotations

import math
from typing import Any

import orjson

from marketplace.gateway.errors import bad_request, replica_failed
from marketplace.gateway.offers import Offer
from protocol.names import ModelName

ATTACK, SAFE = "attack", "safe"
PIECE_CHARACTERS = 600
OVERLAP_CHARACTERS = 100  # so that an attack is not cut in two at a border
MOST_PIECES = 64  # of one request
TOP = 20  # logprobs that are read of the one token


def require_guard(offer: Offer, name: ModelName, *, field: str = "model") -> None:
    """Raise Refusal 400 unless the model's contract is that of a guard."""
    contract = offer.contract
    if contract is None or contract.max_tokens != 1 or contract.logprobs != "open":
        raise bad_request(f"{str(name)!r} is not a guard: its contract does not answer with one word.", field)


def pieces_of(text: str) -> list[str]:
    """Return overlapping pieces of at most PIECE_CHARACTERS that cover `text`."""
    step = PIECE_CHARACTERS - OVERLAP_CHARACTERS
    last = max(0, len(text) - OVERLAP_CHARACTERS)
    return [text[at : at + PIECE_CHARACTERS] for at in range(0, max(1, last), step)]


def body_of(name: ModelName, piece: str) -> bytes:
    """Return the body of the prediction that judges one piece."""
    return orjson.dumps(
        {
            "model": str(name),
            "messages": [{"role": "user", "content": piece}],
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": TOP,
        }
    )


def log_odds(answer: dict[str, Any]) -> float:
    """Return the log-odds (nats) that the piece is an attack. Raises Refusal 502 for an answer without logprobs.

    A word that is not among the first TOP is taken as likely as the last of these.
    """
    try:
        first = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        found = {str(one["token"]).strip(): float(one["logprob"]) for one in reversed(first)}
        least = min(found.values())
    except (KeyError, IndexError, TypeError, ValueError):
        raise replica_failed("The guard did not answer with logprobs.") from None
    return found.get(ATTACK, least) - found.get(SAFE, least)


def probability(odds: float) -> float:
    """Return the probability of log-odds, without overflow."""
    return 1 / (1 + math.exp(-odds)) if odds >= 0 else math.exp(odds) / (1 + math.exp(odds))
