"""Geometry of the picture of a run: the way of its e-value over the rows, on a logarithmic scale. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marketplace.trials.evidence import LOG_THRESHOLD, Step

WIDTH, HEIGHT = 600, 160  # units of the viewBox
_LOWEST, _HIGHEST = -3.2, 3.8  # natural logarithms at the edges; the way is cut off there
_MOST_POINTS = 240
_LEAST_ROWS = 20  # of the picture's width: a run that has just begun does not leap


@dataclass(frozen=True, slots=True)
class WayChart:
    """`points` is that of a polyline; the lines are those of e = 20 and e = 1; `last_x`, `last_y` are the way's end."""

    points: str
    threshold_y: float
    even_y: float
    last_x: float
    last_y: float
    rows: int  # of the whole width


def build_way_chart(steps: Sequence[Step]) -> WayChart:
    """Return the chart of a run, which begins at e = 1."""
    rows = max(len(steps), _LEAST_ROWS)
    stride = max(1, -(-len(steps) // _MOST_POINTS))
    shown = [step for step in steps if step.row % stride == 0 or step is steps[-1]]
    points = [(0.0, _y(0.0))] + [(round(WIDTH * step.row / rows, 1), _y(step.log_e)) for step in shown]
    return WayChart(
        points=" ".join(f"{x:g},{y:g}" for x, y in points),
        threshold_y=_y(LOG_THRESHOLD),
        even_y=_y(0.0),
        last_x=points[-1][0],
        last_y=points[-1][1],
        rows=rows,
    )


def _y(log_e: float) -> float:
    within = min(max(log_e, _LOWEST), _HIGHEST)
    return round(HEIGHT * (_HIGHEST - within) / (_HIGHEST - _LOWEST), 1)
