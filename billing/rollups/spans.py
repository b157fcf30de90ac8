"""Spans of days: a sum over any period is read from a few rows, because each day also counts to longer spans.

A span of n days begins every n days from `FIRST_DAY` on; the span of 0 days is all time. `billing_roll_up` (SQL) adds
each prediction to one row of every length, and `blocks_of` says which rows make up a period.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

FIRST_DAY = date(2000, 1, 1)
ALL_TIME = 0
LENGTHS = (64, 16, 4, 1)  # days, each a multiple of the next


@dataclass(frozen=True, slots=True)
class Block:
    """`days` days from `start` on."""

    days: int
    start: date


EVERYTHING = (Block(ALL_TIME, FIRST_DAY),)


def blocks_of(since: date | None, until: date | None, *, today: date) -> tuple[Block, ...]:
    """Return the blocks that make up the days from `since` up to, not including, `until`. None is an open end.

    Nothing is counted after `today`, so the last block may reach beyond it where `until` is open or in the future.
    """
    if until is not None and until > today:
        until = None
    if since is None and until is None:
        return EVERYTHING
    day = max(since or FIRST_DAY, FIRST_DAY)
    blocks = []
    while day < until if until else day <= today:
        offset = (day - FIRST_DAY).days
        days = next(
            length
            for length in LENGTHS
            if offset % length == 0 and (until is None or day + timedelta(days=length) <= until)
        )
        blocks.append(Block(days, day))
        day += timedelta(days=days)
    return tuple(blocks)


@dataclass(frozen=True, slots=True)
class Period:
    """Whole days (UTC) from `since` up to, not including, `until`; None is an open end."""

    since: date | None = None
    until: date | None = None

    @classmethod
    def of(cls, since: date | datetime | None, until: date | datetime | None) -> Period:
        """Return the days that these moments touch: a moment inside a day takes the whole of it."""
        last = _utc_date(until)
        if isinstance(until, datetime) and last is not None and until.astimezone(UTC).time() != time.min:
            last += timedelta(days=1)
        return cls(_utc_date(since), last)

    def blocks(self, *, today: date) -> tuple[Block, ...]:
        """Return the blocks that make up this period."""
        return blocks_of(self.since, self.until, today=today)


def _utc_date(moment: date | datetime | None) -> date | None:
    return moment.astimezone(UTC).date() if isinstance(moment, datetime) else moment
