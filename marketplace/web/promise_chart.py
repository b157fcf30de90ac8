"""Geometry of the picture of a promise: a bar for each month, and the line that a kept promise stays below. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from marketplace.promises.selectors import Kept, Promised

WIDTH, HEIGHT = 180, 48  # units of the viewBox
LINE = 24  # where the line is: bars reach twice what is allowed
_STEP = 30


@dataclass(frozen=True, slots=True)
class MonthBar:
    """One month: x, y and height in units of the viewBox; `kept` is None where too few calls say nothing."""

    month: date
    x: float
    y: float
    height: float
    kept: bool | None
    label: str


@dataclass(frozen=True, slots=True)
class PromiseView:
    """One promise as pages show it: sentences, and bars of missed calls, oldest first."""

    kind: str
    promised_by: str
    now: str  # the promise of this month, empty if there is none
    later: str  # a change from the next month on, empty if there is none
    promised: Promised
    bars: tuple[MonthBar, ...]

    @property
    def last(self) -> str:
        """Return the words of the newest month that was judged."""
        return self.bars[-1].label if self.bars else ""


def promise_views(promises: Sequence[Promised]) -> list[PromiseView]:
    """Return the promises of a model as its page shows them."""
    return [
        PromiseView(
            kind=one.kind,
            promised_by="platform" if one.kind == "ttft" else "creator",
            now=in_words(one.kind, one.bound) if one.bound is not None else "",
            later=_change(one) if one.changes else "",
            promised=one,
            bars=tuple(_bar(one.kind, index, month) for index, month in enumerate(one.months)),
        )
        for one in promises
    ]


def in_words(kind: str, bound: int) -> str:
    """Return what is promised."""
    if kind == "ttft":
        return f"95 of 100 calls begin to answer within {_seconds(bound)}"
    return f"{bound / 100:g} % of answers are whole and valid"


def _change(one: Promised) -> str:
    start = f"{one.starts_on:%-d %B}"
    if one.next_bound is None:
        return f"The promise ends on {start}."
    return f"From {start} on: {in_words(one.kind, one.next_bound)}."


def _bar(kind: str, index: int, month: Kept) -> MonthBar:
    x = index * _STEP + 5
    if month.kept is None:
        return MonthBar(month.month, x, HEIGHT - 3, 3, None, f"{month.month:%B %Y}: too few calls to say")
    height = round(max(3.0, min(float(HEIGHT), LINE * month.missed_of_allowed)), 1)
    value = month.value or 0
    measured = f"p95 {_seconds(value)}" if kind == "ttft" else f"{value / 100:g} % valid"
    told = f"{month.month:%B %Y}: {measured} of {month.calls:,} calls, {'kept' if month.kept else 'missed'}"
    return MonthBar(month.month, x, round(HEIGHT - height, 1), height, month.kept, told)


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g} s"
