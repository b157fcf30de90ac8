"""The rate at which a promise breaks: above the proven one, where the mean of the same runs crosses the promise."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from capacity.breaking import breaking_rate, crossing, with_breaking_rates
from capacity.operating import Effort, highest_rate, measure
from capacity.search import KeptRuns, operating_point
from capacity.workload import Promise
from tests.capacity.test_search import EFFORT, SCENE, counted


@pytest.mark.deep
def test_a_promise_breaks_above_the_proven_rate_where_its_mean_crosses_alpha(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, told = KeptRuns(), counted(monkeypatch)
    effort = Effort(seeds=5, requests=1_500)
    found = operating_point(SCENE, effort, runs=runs)
    breaks = breaking_rate(SCENE, found.points[1], effort, runs)
    assert set(told.values()) == {1}, "no run is simulated twice"
    assert found.mu[1] == breaks.low < breaks.value < breaks.high
    alpha, capacity = SCENE.workload.alpha, highest_rate(SCENE, effort)
    below, at, above = (measure(SCENE, breaks.value * by, capacity, effort).attainment.value for by in (0.94, 1, 1.06))
    assert below > alpha > above and at == pytest.approx(alpha, abs=0.02)
    assert measure(SCENE, breaks.high * 1.02, capacity, effort).attainment.high < alpha


def test_of_several_replicas_each_number_has_its_own() -> None:
    effort = Effort(seeds=2, requests=120)
    found = operating_point(SCENE, effort, replicas=(1, 2))
    broken = with_breaking_rates(SCENE, found, effort, KeptRuns()).breaks
    assert broken.keys() == {1, 2} and broken[2].value > 1.5 * broken[1].value
    assert broken[1] == breaking_rate(SCENE, found.points[1], effort, KeptRuns())


def test_a_patient_promise_breaks_at_the_highest_rate() -> None:
    patient = msgspec.structs.replace(SCENE.workload, promises={"interactive": Promise(ttft=600.0, tpot=60.0)})
    scene = replace(SCENE, workload=patient)
    found = operating_point(scene, EFFORT)
    breaks = breaking_rate(scene, found.points[1], EFFORT, KeptRuns())
    assert breaks.value == breaks.high == pytest.approx(highest_rate(scene, EFFORT))


@pytest.mark.parametrize(
    ("kept", "rate"),
    [
        ([1.0, 1.0, 0.8], 2.5),
        ([1.0, 0.95, 0.92], 3.0),  # never below
        ([0.5, 0.2, 0.1], 1.0),  # from the beginning
        ([0.87, 0.97, 0.5], 2.0 + 0.02 / 0.42),  # an unlucky rate below a lucky one: both are what they are in the mean
    ],
)
def test_shares_fall_with_the_rate(kept: list[float], rate: float) -> None:
    assert crossing([1.0, 2.0, 3.0], kept, 0.9) == pytest.approx(rate)
