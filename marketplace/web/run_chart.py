"""Geometry of the waterfall of a run: one bar for each call, from the first call to the last end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from marketplace.receipts.run_calls import CallView

WIDTH, ROW = 600, 12  # units of the viewBox
_LEAST = 1.5  # of a bar, so that each is seen


@dataclass(frozen=True, slots=True)
class CallBar:
    """One call from `x` on: `outside` the replica, in its `queue`, `first` until the first token, `rest`: widths."""

    call: CallView
    y: int
    x: float
    outside: float
    queue: float
    first: float
    rest: float

    @property
    def queue_x(self) -> float:
        """Return where the replica's queue begins."""
        return round(self.x + self.outside, 1)

    @property
    def first_x(self) -> float:
        """Return where the replica takes the call up."""
        return round(self.x + self.outside + self.queue, 1)

    @property
    def rest_x(self) -> float:
        """Return where the first token came."""
        return round(self.x + self.outside + self.queue + self.first, 1)


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The bars in the order of their calls, and the milliseconds of the whole width."""

    bars: tuple[CallBar, ...]
    milliseconds: int

    @property
    def height(self) -> int:
        """Return the height of the viewBox."""
        return ROW * len(self.bars)


def build_waterfall(calls: Sequence[CallView], *, now: datetime) -> Waterfall:
    """Return the chart of these calls; one without an end goes on until now."""
    if not calls:
        return Waterfall((), 0)
    begin = min(call.started_at for call in calls)
    end = max(call.ended_at or now for call in calls)
    span = max((end - begin) / timedelta(milliseconds=1), 1.0)
    return Waterfall(tuple(_bar(call, at, begin, span, now) for at, call in enumerate(calls)), round(span))


def _bar(call: CallView, at: int, begin: datetime, span: float, now: datetime) -> CallBar:
    scale = WIDTH / span
    total = ((call.ended_at or now) - call.started_at) / timedelta(milliseconds=1)
    replica = min(call.replica_ms or 0, total)
    first = min(call.first_token_ms or 0, replica)
    queue = min(call.queue_ms or 0, first)
    return CallBar(
        call=call,
        y=at * ROW,
        x=round((call.started_at - begin) / timedelta(milliseconds=1) * scale, 1),
        outside=round(max((total - replica) * scale, _LEAST), 1),
        queue=round(queue * scale, 1),
        first=round((first - queue) * scale, 1),
        rest=round((replica - first) * scale, 1),
    )
