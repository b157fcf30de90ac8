"""Geometry of the picture of the fleet on its plan's curve: hours that were measured beside what was planned. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from marketplace.planning.documents import PromisedBase
from marketplace.planning.measured import MeasuredHour

WIDTH, HEIGHT = 640, 240  # units of the viewBox
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 28, 36
_FAR = 3.0  # times the greatest wait: where a limit is no longer drawn


@dataclass(frozen=True, slots=True)
class Dot:
    """A point with the words that a pointer reads."""

    x: float
    y: float
    note: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis, and its figure."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class FleetChart:
    """The curve as the points of a polyline, the operating point, measured hours as dots and as a table, limits, and
    both axes."""

    name: str
    line: str
    chosen: Dot | None
    hours: tuple[Dot, ...]
    rows: tuple[tuple[str, str, str], ...]
    limits: tuple[Tick, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]

    @property
    def head(self) -> tuple[str, str, str]:
        """Return the columns of the table."""
        return "Hour (UTC)", "Calls/s of a replica", "95 % of first tokens within, s"

    @property
    def words(self) -> str:
        """Return what a reader who does not see the picture is told."""
        return f"{len(self.hours)} measured hours of {self.name} on the curve of its plan"


def fleet_chart(base: PromisedBase, hours: Sequence[MeasuredHour]) -> FleetChart | None:
    """Return the picture of one base, None where its plan has no curve."""
    if not base.curve:
        return None
    planned = [*base.curve, *([base.chosen] if base.chosen else [])]
    points = [*planned, *((one.each, one.ttft) for one in hours)]
    widest, highest = max(x for x, _ in points), max(y for _, y in points)
    limits = {name: one.ttft for name, one in base.promises.items() if one.ttft <= _FAR * highest}
    across, up = _ticks(widest), _ticks(max([highest, *limits.values()]))

    def x(value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * value / across[-1], 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / up[-1], 1)

    return FleetChart(
        name=base.name,
        line=" ".join(f"{x(rate)},{y(wait)}" for rate, wait in base.curve),
        chosen=Dot(x(base.chosen[0]), y(base.chosen[1]), _note("planned", *base.chosen)) if base.chosen else None,
        hours=tuple(Dot(x(one.each), y(one.ttft), _note(_time(one), one.each, one.ttft)) for one in hours),
        rows=tuple((_time(one), f"{one.each:,.3f}", f"{one.ttft:,.2f}") for one in hours),
        limits=tuple(Tick(y(wait), f"promised, {name}") for name, wait in sorted(limits.items())),
        across=tuple(Tick(x(value), f"{value:g}") for value in across),
        up=tuple(Tick(y(value), f"{value:g}") for value in up),
    )


def _time(hour: MeasuredHour) -> str:
    return f"{hour.hour:%-d %b, %H:%M}"


def _note(when: str, each: float, wait: float) -> str:
    return f"{when}: {each:,.2f} calls/s of a replica, 95 % of first tokens within {wait:,.2f} s"


def _ticks(most: float) -> list[float]:
    """Return 0 and up to six round numbers, the last at least `most`."""
    most = most if most > 0 and math.isfinite(most) else 1.0
    step = 10 ** math.floor(math.log10(most / 4))
    step = next(step * factor for factor in (1, 2, 2.5, 5, 10, 20) if most / (step * factor) <= 6)
    return [round(step * number, 12) for number in range(math.ceil(most / step - 1e-9) + 1)]
