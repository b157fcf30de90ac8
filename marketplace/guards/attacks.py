"""A guard's verdict on a text: how likely it is that the text tries to give a model other instructions. Pure.

A guard is a model like any other whose contract answers with one word, `attack` or `safe`, and opens its logprobs. It
reads a text in overlapping pieces of the length that it was trained on; the worst piece counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from protocol.contracts import PublicContract

ATTACK, SAFE = "attack", "safe"
PIECE_CHARACTERS = 600
OVERLAP_CHARACTERS = 100  # so that an attack is not cut in two at a border
MOST_PIECES = 64  # of one request
TOP = 20  # logprobs that are read of the one token
ALLOWED_SHARE = 200  # one honest row of so many may be flagged
LEAST_ROWS = 50  # honest rows that a threshold is set on


class NoVerdict(Exception):
    """The answer has no logprobs."""


def is_guard(contract: PublicContract | None) -> bool:
    """Return whether this is the contract of a guard."""
    return contract is not None and contract.max_tokens == 1 and contract.logprobs == "open"


def pieces_of(text: str) -> list[str]:
    """Return overlapping pieces of at most PIECE_CHARACTERS that cover `text`."""
    step = PIECE_CHARACTERS - OVERLAP_CHARACTERS
    last = max(0, len(text) - OVERLAP_CHARACTERS)
    return [text[at : at + PIECE_CHARACTERS] for at in range(0, max(1, last), step)]


def body_of(model: str, piece: str) -> dict[str, Any]:
    """Return the body of the prediction that judges one piece."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": piece}],
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": TOP,
    }


def log_odds(answer: dict[str, Any]) -> float:
    """Return the log-odds (nats) that the piece is an attack. Raises NoVerdict for an answer without logprobs.

    A word that is not among the first TOP is taken as likely as the last of these.
    """
    try:
        first = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        found = {str(one["token"]).strip(): float(one["logprob"]) for one in reversed(first)}
        least = min(found.values())
    except (KeyError, IndexError, TypeError, ValueError):
        raise NoVerdict from None
    return found.get(ATTACK, least) - found.get(SAFE, least)


def probability(odds: float) -> float:
    """Return the probability of log-odds, without overflow."""
    return 1 / (1 + math.exp(-odds)) if odds >= 0 else math.exp(odds) / (1 + math.exp(odds))


def threshold_for(odds: Sequence[float]) -> float:
    """Return the log-odds above which a text is refused, so that at most one of ALLOWED_SHARE honest texts is.

    `odds` are those of the honest texts. Raises ValueError for fewer than LEAST_ROWS.
    """
    if len(odds) < LEAST_ROWS:
        raise ValueError(f"a threshold needs {LEAST_ROWS} honest rows, not {len(odds)}")
    return sorted(odds, reverse=True)[len(odds) // ALLOWED_SHARE]
