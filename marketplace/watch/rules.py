"""Alarms of a model: what is measured, the thresholds, and when one fires or clears. Pure.

Two windows in a row beyond the threshold fire an alarm, one within it clears the alarm: a single bad hour wakes nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from marketplace.watch.drift import ALERT
from marketplace.watch.sums import Sums, quantile

FIRES_AFTER = 2
Event = Literal["fired", "cleared"]


@dataclass(frozen=True, slots=True)
class Metric:
    """Something an alarm watches. `default` None: off until its creator sets a threshold; `most`: of a threshold."""

    name: str
    label: str
    unit: str
    default: float | None
    most: float
    is_floor: bool = False  # beyond is below


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("errors", "Errors", "% of requests", 10.0, 100.0),
        Metric("latency", "Duration, 95th percentile", "ms", None, 3_600_000.0),
        Metric("valid", "Whole answers", "% of calls", 90.0, 100.0, is_floor=True),
        Metric("drift", "Drift (PSI)", "", ALERT, 10.0),
        Metric("spend", "Spending", "$ an hour", None, 1_000_000.0),
    )
}


@dataclass(frozen=True, slots=True)
class AlarmState:
    """Whether an alarm has fired and not cleared, and how many windows in a row were beyond its threshold."""

    firing: bool = False
    streak: int = 0


def advance(state: AlarmState, *, beyond: bool) -> tuple[AlarmState, Event | None]:
    """Return the state after one more window, and what happened."""
    if not beyond:
        return AlarmState(), "cleared" if state.firing else None
    streak = min(state.streak + 1, FIRES_AFTER)
    fires = not state.firing and streak >= FIRES_AFTER
    return AlarmState(state.firing or fires, streak), "fired" if fires else None


def is_beyond(metric: Metric, value: float, threshold: float) -> bool:
    """Return whether a value is on the wrong side of the threshold."""
    return value < threshold if metric.is_floor else value > threshold


def measured(sums: Sums, *, hours: float, promises_whole: bool) -> dict[str, float]:
    """Return what a block of so many hours says for each metric but drift; a metric it cannot judge is left out.

    `promises_whole`: the contract has an output schema, so that an answer that did not come to its end is not valid.
    """
    found: dict[str, float] = {"spend": sums.spent_nano_usd / 1e9 / hours}
    if requests := sums.calls + sums.failures:
        found["errors"] = 100 * sums.failures / requests
    if promises_whole and sums.calls:
        found["valid"] = 100 * sums.valid / sums.calls
    slow = quantile(sums.duration, 0.95)
    if slow is not None:
        found["latency"] = slow
    return found
