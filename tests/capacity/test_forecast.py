"""Forecasts of demand: better than last week again, with intervals that hold, and honest about short histories."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from capacity.errors import PlanRefused
from capacity.forecast import WEEK, Demand, Event, backtest, forecast

START = datetime(2026, 9, 1, tzinfo=UTC)


def history(weeks: int, *, growth: float = 0.0, noise: float = 0.15, spikes: int = 0, seed: int = 0) -> Demand:
    """Return an invented history with days, weekends, growth by the week, noise and spikes."""
    chance = np.random.default_rng(seed)
    hour = np.arange(weeks * WEEK)
    day = 1 + 0.8 * np.sin((hour % 24 - 8) / 24 * 2 * np.pi)
    mean = 1000 * day * np.where(hour // 24 % 7 >= 5, 0.6, 1.0) * (1 + growth) ** (hour / WEEK)
    mean = mean * np.exp(chance.normal(0, noise, len(hour)))
    for _ in range(spikes):
        at = chance.integers(0, len(hour) - 6)
        mean[at : at + 4] *= chance.uniform(2, 4)
    return Demand(START, chance.poisson(mean).astype(float))


@pytest.mark.parametrize(("growth", "spikes"), [(0.0, 0), (0.04, 2), (0.0, 10), (-0.03, 3)])
def test_beats_last_week_and_covers(growth: float, spikes: int) -> None:
    errors, covered = [], []
    for seed in range(2):
        whole = history(10, growth=growth, spikes=spikes, seed=seed)
        for weeks in (5, 7, 9):
            known, after = Demand(START, whole.calls[: weeks * WEEK]), whole.calls[weeks * WEEK : (weeks + 1) * WEEK]
            found, last = forecast(known), known.calls[-WEEK:]
            errors.append((np.abs(found.median - after).sum(), np.abs(last - after).sum()))
            covered.append(((after >= found.low) & (after <= found.high)).mean())
            assert (found.low <= found.median).all() and (found.median <= found.high).all()
            assert found.start == START + timedelta(weeks=weeks)
    ours, theirs = np.array(errors).sum(axis=0)
    assert ours < theirs
    assert 0.85 <= np.mean(covered) <= 0.97


def test_growth_goes_on_but_fades() -> None:
    found = forecast(history(8, growth=0.06, noise=0.02), weeks=4)
    totals = found.median.reshape(4, WEEK).sum(axis=1)
    steps = totals[1:] / totals[:-1] - 1
    assert (steps > 0).all() and (np.diff(steps) < 0).all() and steps[0] < 0.06
    widths = (found.high - found.low).reshape(4, WEEK).sum(axis=1)
    assert (np.diff(widths) > 0).all()


def test_short_history_is_said_in_words() -> None:
    one_day = Demand(START, np.full(24, 10.0))
    found = forecast(one_day)
    assert (found.median == 10).all() and (found.low == 10 / 3).all() and (found.high == 30).all()
    assert found.backtest is None
    assert "1.0 days" in found.warnings[0] and "15" in found.warnings[0]


def test_hours_that_were_not_recorded_do_not_count_as_quiet() -> None:
    whole = history(6, noise=0.0)
    gap = whole.calls.copy()
    gap[-30:-10] = np.nan
    found, unbroken = forecast(Demand(START, gap)), forecast(whole)
    assert np.abs(found.median / unbroken.median - 1).max() < 0.05
    assert "20 of 1008 hours" in found.warnings[0]


def test_events_are_added_by_hand() -> None:
    known = history(6)
    plain = forecast(known)
    event = Event(plain.start + timedelta(hours=10), plain.start + timedelta(hours=12), 3.0)
    found = forecast(known, events=[event])
    assert np.allclose(found.median[10:12], 3 * plain.median[10:12])
    assert (found.median[12:] == plain.median[12:]).all() and (found.median[:10] == plain.median[:10]).all()
    assert found.peak >= plain.peak
    with pytest.raises(PlanRefused, match="factor"):
        forecast(known, events=[Event(event.start, event.end, -1.0)])


def test_backtest_tells_the_rule_to_beat() -> None:
    found = backtest(history(9, growth=0.02, spikes=4, seed=3))
    assert found is not None and found.origins == 6
    assert found.wape < found.last_week_wape and 0.8 <= found.covered <= 1.0
    assert backtest(history(3)) is None


@pytest.mark.parametrize(
    ("start", "calls", "words"),
    [
        (START, [], "empty"),
        (START, [0.0, 0.0], "empty"),
        (START, [np.nan, np.nan], "empty"),
        (START, [1.0, -1.0], "not negative"),
        (START, [1.0, np.inf], "finite"),
        (START.replace(tzinfo=None), [1.0], "time zone"),
        (START.replace(minute=5), [1.0], "full hour"),
    ],
)
def test_figures_that_cannot_be(start: datetime, calls: list[float], words: str) -> None:
    with pytest.raises(PlanRefused, match=words):
        Demand(start, np.array(calls))


def test_same_history_same_forecast() -> None:
    one, other = forecast(history(6)), forecast(history(6))
    assert (one.median == other.median).all() and one.peak == other.peak
