"""Chance is no rise, a rise is seen early, and a burst does not teach the pool that its demand is unsteady."""

from __future__ import annotations

import numpy as np

from serving.fleet.rises import (
    QUICK_SECONDS,
    SMOOTH_SECONDS,
    faded,
    headroom,
    leapt,
    margin,
    risen,
    usual_change,
)

SERVICE, SEATS = 4.0, 150.0


def looks(rates: list[float], seed: int) -> list[float]:
    """Return what `risen` says at each second of Poisson arrivals at these rates."""
    quick, smooth, said = SEATS, SEATS, []
    for count in np.random.default_rng(seed).poisson(rates).tolist():
        quick += (count * SERVICE - quick) * faded(1.0, QUICK_SECONDS)
        smooth += (count * SERVICE - smooth) * faded(1.0, SMOOTH_SECONDS)
        said.append(risen(quick, smooth, [SEATS] * 5, service_s=SERVICE, ready_seconds=60.0))
    return said


def test_chance_is_no_rise_and_a_rise_of_a_third_is_seen_within_a_minute() -> None:
    even = SEATS / SERVICE
    for seed in range(4):
        said = looks([even] * 600 + [even * (1 + second / 180) for second in range(60)], seed)
        assert not any(said[:600])
        assert max(said[600:]) >= 1.25 * SEATS, "what is seen is answered with a quarter at least"


def test_a_leap_is_what_chance_does_not_explain() -> None:
    assert leapt(170.0, SEATS, service_s=SERVICE) == 0.0
    assert leapt(200.0, SEATS, service_s=SERVICE) == 200.0


def test_the_usual_change_is_learned_without_trend_and_bursts() -> None:
    wavering = np.random.default_rng(1).normal(100.0, 3.0, 60).tolist()
    growing = [level + 0.5 * minute for minute, level in enumerate([100.0] * 60)]
    burst = [level * (1.6 if 30 <= minute < 38 else 1.0) for minute, level in enumerate(wavering)]
    assert usual_change(wavering[:19]) is None and margin(None, seconds=600.0, ready_seconds=60.0) == 1 / 6
    assert 0.03 < (change := usual_change(wavering) or 0.0) < 0.08
    assert (usual_change(growing) or 0.0) < 0.01
    assert abs((usual_change(burst) or 0.0) - change) < 0.02
    assert headroom(None, 60.0) == 0.0 and headroom(0.5, 60.0) == 1 / 6
    assert headroom(0.01, 75.0) == 0.015, "three deviations of a quarter of five minutes"
    assert margin(0.0, seconds=600.0, ready_seconds=60.0) == 0.04
    assert margin(0.5, seconds=600.0, ready_seconds=60.0) == 1 / 6
    assert usual_change([0.0] * 60) == 0.0
