"""The bytes that close an answer and say what it cost.

They follow from the answer and the charge alone, so that an answer can be kept before it is charged, and a replay has
the same bytes.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson

from marketplace.accounts.errors import Refusal
from marketplace.gateway.errors import error_answer
from protocol.events import DONE, format_event
from protocol.messages import PREDICTION_EXTRA_KEY, to_fields
from protocol.money import decimal

STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
    "x-should-retry": "false",
}
WHOLE_HEADERS = {"content-type": "application/json", "x-should-retry": "false"}


def whole_body(answer: dict[str, Any], prediction_id: UUID, cost: int | None, *, cut_off: bool = False) -> bytes:
    """Return a whole answer with its cost in nano-dollars; None: it is not charged yet. `cut_off`: see `_about`."""
    usage = _charged_usage(answer.get("usage") or {}, cost)
    return orjson.dumps(answer | {"usage": usage, PREDICTION_EXTRA_KEY: _about(prediction_id, cost, cut_off=cut_off)})


def stream_end(
    last: dict[str, Any], tokens: int, prediction_id: UUID, cost: int | None, *, cut_off: bool = False
) -> bytes:
    """Return the last event, which carries the usage or an error, and the end of a stream.

    An empty `last` is none: OpenAI sends no usage unless it is asked to; the playground and curl's readers ask.
    """
    if not last:
        return DONE
    last = last | {PREDICTION_EXTRA_KEY: _about(prediction_id, cost, cut_off=cut_off)}
    if "error" not in last:
        last["usage"] = _charged_usage(last.get("usage") or {}, cost)
    return format_event(orjson.dumps(last), tokens) + DONE


def lost_end(message: str, tokens: int, prediction_id: UUID) -> bytes:
    """Return the end of a stream whose replica was lost: what it costs is not known yet."""
    lost = to_fields(error_answer(Refusal(message, code="replica_lost", status=503)))
    return stream_end(lost, tokens, prediction_id, None)


def cut_end(tokens: int, prediction_id: UUID, cost: int) -> bytes:
    """Return the end of a replayed stream that its first client left, or whose replica was lost."""
    message = "The answer ended here when it was first sent, and was charged up to here. Ask again under another key."
    cut = to_fields(error_answer(Refusal(message, code="answer_cut_short", status=503)))
    cut["usage"] = _charged_usage({}, cost)
    return stream_end(cut, tokens, prediction_id, cost)


def dollars_of(nano_usd: int) -> orjson.Fragment:
    """Return dollars as a JSON number, to the last nano-dollar."""
    return orjson.Fragment(decimal(nano_usd))


def _charged_usage(usage: dict[str, Any], cost: int | None) -> dict[str, Any]:
    """OpenAI's usage object plus the charge: nano-dollars exactly, dollars for reading."""
    return usage if cost is None else usage | {"cost_nano_usd": cost, "cost": dollars_of(cost)}


def _about(prediction_id: UUID, cost: int | None, *, cut_off: bool) -> dict[str, Any]:
    """Return the `intarsia` object at the end of an answer. `cut_off`: it is free, because it is not whole."""
    about = {"prediction_id": str(prediction_id), "receipt_id": str(prediction_id), "settled": cost is not None}
    return about | {"cut_off": True} if cut_off and cost == 0 else about
