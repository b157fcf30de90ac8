"""Judges of an answer: a closed list of pure functions. No model judges, so the same answer is always judged alike."""

from __future__ import annotations

import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from protocol.eval_rows import MISSING, EvalRow, Scorer, expected_part, json_value, number_of, part_of

MATCH_SECONDS = 0.2  # of one pattern on one answer; an honest one takes microseconds
MAX_MATCHED = 20_000  # characters of an answer that a pattern is tried on


class PatternRefused(Exception):
    """A row's pattern is no regular expression, or takes too long: the run ends, and says in which row."""


def is_right(scorer: Scorer, row: EvalRow, answer: str) -> bool:
    """Return whether an answer is what the row expects. Raises PatternRefused."""
    match scorer.kind:
        case "json":
            return same(json_value(answer), json_value(row.expected))
        case "fields":
            return all(field_is_right(row, answer, field) for field in scorer.fields)
        case "label":
            return label_of(scorer, answer) == expected_label(scorer, row)
        case "regex":
            text = part_of(answer, scorer.field)
            return isinstance(text, str) and _matches(expected_part(row.expected, scorer.field), text)
        case "number":
            found = number_of(part_of(answer, scorer.field))
            wanted = number_of(expected_part(row.expected, scorer.field))
            # The tolerance is meant in decimals: .3 is within .1 of .2, whatever binary fractions make of it.
            return found is not None and wanted is not None and abs(found - wanted) <= scorer.tolerance * (1 + 1e-9)


def field_is_right(row: EvalRow, answer: str, field: str) -> bool:
    """Return whether one field of an answer is as expected."""
    return same(part_of(answer, field), part_of(row.expected, field))


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: true is not 1, 1 is 1.0, and the order of an object says nothing."""
    if one is MISSING or other is MISSING:
        return False
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


def expected_label(scorer: Scorer, row: EvalRow) -> str:
    """Return the label that the row expects."""
    return str(expected_part(row.expected, scorer.field))


def label_of(scorer: Scorer, answer: str) -> str | None:
    """Return the label of an answer, None for an answer without one."""
    found = part_of(answer, scorer.field)
    if not isinstance(found, str):
        return None
    return found if scorer.field else found.strip()


def macro_f1(pairs: Sequence[tuple[str, str | None]]) -> float:
    """Return the mean F1 over the labels that are expected, from pairs of (expected, answered), 0 to 1.

    An answer that is no expected label counts against the label that was expected alone.
    """
    expected, answered = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    right = Counter(one for one, other in pairs if one == other)
    return sum(2 * right[label] / (expected[label] + answered[label]) for label in expected) / max(1, len(expected))


def _matches(pattern: str, text: str) -> bool:
    try:
        with _time_limit(MATCH_SECONDS):
            return len(text) <= MAX_MATCHED and re.fullmatch(pattern, text) is not None
    except (re.error, RecursionError, OverflowError):
        raise PatternRefused("the pattern is no regular expression") from None
    except TimeoutError:
        raise PatternRefused(f"the pattern takes longer than {MATCH_SECONDS:g} s") from None


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after so long, also out of a match: `re` looks for signals while it goes back and forth."""
    assert threading.current_thread() is threading.main_thread(), "signals reach the main thread alone"

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    handler = signal.signal(signal.SIGALRM, stop)
    before, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if before:  # somebody else's alarm, a moment later than it was meant
            signal.setitimer(signal.ITIMER_REAL, before)
