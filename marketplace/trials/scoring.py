"""Judging answers: a closed list of comparisons with the expected answer. Pure; no model judges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

MOST_FIELDS = 32


def score(answer: str, expected: Any, fields: Sequence[str] = ()) -> int:
    """Return 1 for an answer that is the expected one and 0 for another; with `fields`, how many of them are right.

    Both are compared as JSON values, so neither spaces nor the order of keys matter. Text that is no JSON is compared
    without the spaces around it.
    """
    said, wanted = _value(answer), _value(expected) if isinstance(expected, str) else expected
    if not fields:
        return int(_same(said, wanted))
    if not isinstance(said, dict) or not isinstance(wanted, dict):
        return 0
    return sum(name in said and name in wanted and _same(said[name], wanted[name]) for name in fields)


def winner(a_score: int, b_score: int) -> int:
    """Return -1 if A is more right, 1 if B is, and 0 if the row does not tell them apart."""
    return (b_score > a_score) - (b_score < a_score)


def _value(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text.strip()


def _same(one: Any, other: Any) -> bool:
    """Compare JSON values; true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
