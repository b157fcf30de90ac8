"""Demand by hour for the next weeks, with intervals and the errors that the same rule made on the past (step 3).

The typical week is the median, hour by hour, of the last four weeks, each divided by its own total; the level follows a
damped trend of the weekly totals. Intervals come from the rule's own errors on the history (split conformal
prediction, Vovk et al. 2005), taken at one origin a day. A week's busiest hours are forecast apart: a median of hours
that peak on different days lies below all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from capacity.errors import PlanRefused

Hours = NDArray[np.float64]

WEEK = 168
SHORT_DAYS = 15  # of history, below which there is no typical week
COVERAGE = 0.9
_WEEKS = 4
_GAIN, _TREND, _DAMPING = 0.5, 0.2, 0.8  # of the level, of its trend, of the trend a week further on
_SPIKE = 3.0  # times the typical hour: what lies above does not move the level
_MOST_ORIGINS = 28
_SHORT_FACTOR = 3.0
_FLOOR = 0.05  # of the mean: relative errors of quiet hours would be without bound


@dataclass(frozen=True)
class Demand:
    """Calls by hour, served and refused, from `start` on. nan: an hour that was not recorded."""

    start: datetime
    calls: Hours

    def __post_init__(self) -> None:
        """Raise PlanRefused for figures that are none."""
        known = self.calls[~np.isnan(self.calls)]
        if self.start.tzinfo is None or self.start != self.start.astimezone(UTC).replace(
            minute=0, second=0, microsecond=0
        ):
            raise PlanRefused(3, "a history starts at a full hour, with its time zone")
        if known.size == 0 or not known.any():
            raise PlanRefused(3, "the history is empty: there is no call in it; give a workload with rates instead")
        if np.isinf(known).any() or (known < 0).any():
            raise PlanRefused(3, "a history has calls by hour, which are finite and not negative")


@dataclass(frozen=True)
class Event:
    """A change that staff know of: calls of the hours from `start` to `end` are multiplied by `factor`."""

    start: datetime
    end: datetime
    factor: float


@dataclass(frozen=True)
class Backtest:
    """Errors on the past, seven days ahead, over `origins` starting points; `last_week` is the rule to beat.

    wape: Σ|error| / Σ calls; peak: relative error of the busiest hours (99 %); covered: share inside the interval
    """

    origins: int
    wape: float
    last_week_wape: float
    peak: float
    last_week_peak: float
    covered: float


@dataclass(frozen=True)
class Forecast:
    """Calls by hour from `start` on. `low` to `high` is meant to hold COVERAGE of the hours. peak: the 99 % hour."""

    start: datetime
    median: Hours
    low: Hours
    high: Hours
    peak: float
    peak_high: float
    backtest: Backtest | None
    warnings: tuple[str, ...] = field(default=())


def forecast(history: Demand, *, weeks: int = 1, events: Sequence[Event] = ()) -> Forecast:
    """Return the demand of the next `weeks` weeks (1 to 13). Raises PlanRefused."""
    if not 1 <= weeks <= 13:
        raise PlanRefused(3, "a forecast is for 1 to 13 weeks")
    calls, hours = history.calls, weeks * WEEK
    start = history.start + timedelta(hours=len(calls))
    if len(calls) < SHORT_DAYS * 24:
        found = _short(calls, start, hours)
    else:
        median = _typical(calls, weeks)
        floor = _floor(median)
        low_ratio, high_ratio = _ratios(calls)
        # Errors grow with the square root of the weeks, as those of a level that wanders do.
        wider = np.sqrt(np.repeat(np.arange(1, weeks + 1), WEEK))
        peak = _peak(calls) * _growth(calls, weeks)
        found = Forecast(
            start,
            median,
            np.maximum((median + floor) * low_ratio**wider - floor, 0.0),
            np.maximum((median + floor) * high_ratio**wider - floor, median),
            peak,
            peak * _peak_ratio(calls) ** math.sqrt(weeks),
            backtest(history),
            _warnings(calls),
        )
    return _with_events(found, events)


def backtest(history: Demand, most_origins: int = 8) -> Backtest | None:
    """Return the rule's errors from weekly origins of the past; None where the history has none (under 4 weeks)."""
    calls = history.calls
    origins = list(range(len(calls) - WEEK, 3 * WEEK - 1, -WEEK))[:most_origins]
    if not origins:
        return None
    rows = []
    for origin in origins:
        before, after = calls[:origin], calls[origin : origin + WEEK]
        known = ~np.isnan(after)
        total = after[known].sum()
        if not total:
            continue
        ours, last, top = _typical(before, 1), _filled_week(before), float(np.quantile(after[known], 0.99))
        low, high = _interval(before, ours)
        rows.append(
            (
                np.abs(ours - after)[known].sum() / total,
                np.abs(last - after)[known].sum() / total,
                abs(_peak(before) / top - 1) if top else 0.0,
                abs(float(np.quantile(last, 0.99)) / top - 1) if top else 0.0,
                ((after >= low) & (after <= high))[known].mean(),
            )
        )
    if not rows:
        return None
    wape, last_wape, peak, last_peak, covered = np.median(np.array(rows), axis=0)
    return Backtest(len(rows), float(wape), float(last_wape), float(peak), float(last_peak), float(covered))


def _interval(calls: Hours, median: Hours) -> tuple[Hours, Hours]:
    floor, (low, high) = _floor(median), _ratios(calls)
    return np.maximum((median + floor) * low - floor, 0.0), (median + floor) * high - floor


def _weeks(calls: Hours, most: int = _WEEKS) -> Hours:
    """Return the last weeks, [weeks, 168], the newest last; what is not recorded is nan."""
    count = max(1, min(most, len(calls) // WEEK))
    return calls[-count * WEEK :].reshape(count, WEEK)


def _medians(rows: Hours) -> Hours:
    """Return the median of each hour over the weeks; an hour that no week has takes the median of all."""
    known = ~np.isnan(rows)
    filled = np.where(known.any(axis=0), rows, np.nanmedian(rows))
    medians: Hours = np.nanmedian(filled, axis=0)
    return medians


def _smooth(week: Hours) -> Hours:
    """Return the week with each hour averaged with its neighbours, which are the same hour of other clocks."""
    around = np.pad(week, 1, mode="wrap")
    return (around[:-2] + 2 * around[1:-1] + around[2:]) / 4


def _totals(calls: Hours) -> Hours:
    """Return the total of each of the last weeks, oldest first, without spikes and with gaps filled."""
    rows = _weeks(calls)
    typical = _smooth(_medians(rows))
    filled = np.where(np.isnan(rows), typical, rows)
    totals: Hours = np.minimum(filled, _SPIKE * np.maximum(typical, 0.2 * typical.mean())).sum(axis=1)
    return totals


def _trend(calls: Hours) -> tuple[float, float]:
    """Return logarithm and trend a week of the weekly total, by Holt's smoothing with a damped trend."""
    logs = np.log(_totals(calls) + 1)
    level, trend = float(logs[0]), 0.0
    for value in logs[1:]:
        moved = _GAIN * float(value) + (1 - _GAIN) * (level + _DAMPING * trend)
        trend = _TREND * (moved - level) + (1 - _TREND) * _DAMPING * trend
        level = moved
    return level, trend


def _level(calls: Hours, week: int) -> float:
    """Return the total of the week that is `week` weeks ahead, 1 for the next one."""
    level, trend = _trend(calls)
    return math.exp(level + trend * sum(_DAMPING**n for n in range(1, week + 1)))


def _growth(calls: Hours, weeks: int) -> float:
    """Return the greatest of the next weeks' levels over the median of the last ones."""
    typical = float(np.median(_totals(calls)))
    return max(_level(calls, week) for week in range(1, weeks + 1)) / typical if typical else 1.0


def _typical(calls: Hours, weeks: int) -> Hours:
    rows, totals = _weeks(calls), _totals(calls)
    shape = _smooth(_medians(rows / np.maximum(totals, 1.0)[:, None]))
    return np.concatenate([shape * _level(calls, week) for week in range(1, weeks + 1)])


def _peak(calls: Hours) -> float:
    return float(np.median([np.nanquantile(row, 0.99) for row in _weeks(calls) if not np.isnan(row).all()]))


def _filled_week(calls: Hours) -> Hours:
    week, typical = calls[-WEEK:], _medians(_weeks(calls))
    return np.where(np.isnan(week), typical, week)


def _floor(median: Hours) -> float:
    return _FLOOR * float(median.mean()) + 1e-9


def _origins(calls: Hours) -> range:
    return range(len(calls) - 24, max(2 * WEEK, len(calls) - 24 * _MOST_ORIGINS) - 1, -24)


def _ratios(calls: Hours) -> tuple[float, float]:
    """Return the ratios of actual to forecast calls between which COVERAGE of the past lies."""
    found, origins = [], 0
    for origin in _origins(calls):
        median = _typical(calls[:origin], 1)
        actual = calls[origin : origin + WEEK]
        floor = _floor(median)
        found.append((actual + floor) / (median[: len(actual)] + floor))
        origins += 1
    if not found:
        return 1 / _SHORT_FACTOR, _SHORT_FACTOR
    ratios = np.concatenate(found)
    # Origins a day apart overlap by six days of seven: fewer of them count, and the tails are taken further out.
    tail = (1 - COVERAGE) / 2 * origins / (origins + 7)
    low, high = np.nanquantile(ratios, [tail, 1 - tail])
    return float(low), float(high)


def _peak_ratio(calls: Hours) -> float:
    """Return what the busiest hours of a past week came to at most, over their forecast; at least 1."""
    found = [1.0]
    for origin in _origins(calls):
        actual = calls[origin : origin + WEEK]
        if len(actual) == WEEK and not np.isnan(actual).all():
            before = calls[:origin]
            found.append(float(np.nanquantile(actual, 0.99)) / max(_peak(before) * _growth(before, 1), 1e-9))
    return float(np.quantile(found, (1 + COVERAGE) / 2))


def _short(calls: Hours, start: datetime, hours: int) -> Forecast:
    last_day = calls[-24:]
    level = float(np.nanmean(last_day if not np.isnan(last_day).all() else calls))
    flat = np.full(hours, level)
    days = len(calls) / 24
    words = (
        f"The history has {days:.1f} days, and a typical week needs {SHORT_DAYS}: the level of its last day stands "
        f"for every hour, and the interval reaches from a third of it to {_SHORT_FACTOR:.0f} times. "
        f"Plan again once there are {SHORT_DAYS} days."
    )
    top = level * _SHORT_FACTOR
    return Forecast(
        start, flat, flat / _SHORT_FACTOR, flat * _SHORT_FACTOR, float(np.nanmax(calls)), top, None, (words,)
    )


def _warnings(calls: Hours) -> tuple[str, ...]:
    missing = int(np.isnan(calls).sum())
    words = f"{missing} of {len(calls)} hours were not recorded: the same hours of other weeks stand for them."
    return (words,) if missing else ()


def _with_events(found: Forecast, events: Sequence[Event]) -> Forecast:
    factors = np.ones(len(found.median))
    for event in events:
        if not (math.isfinite(event.factor) and 0 < event.factor <= 1000 and event.start < event.end):
            raise PlanRefused(3, "an event ends after its start and has a factor above 0, at most 1000")
        first = math.floor((event.start - found.start) / timedelta(hours=1))
        last = math.ceil((event.end - found.start) / timedelta(hours=1))
        factors[max(0, first) : max(0, last)] *= event.factor
    if not events:
        return found
    median = found.median * factors
    risen = max(1.0, float(np.quantile(median, 0.99)) / max(float(np.quantile(found.median, 0.99)), 1e-9))
    return Forecast(
        found.start,
        median,
        found.low * factors,
        found.high * factors,
        found.peak * risen,
        found.peak_high * risen,
        found.backtest,
        found.warnings,
    )
