"""The sketch of an operating point: near to what full effort proves, for a fraction of the calls, and seldom misled."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from capacity import search
from capacity.errors import PlanRefused
from capacity.operating import Effort, highest_rate
from capacity.runs import RunResult
from capacity.search import operating_point
from capacity.simulate import Scene, run
from capacity.sketch import sketched
from capacity.workload import Promise
from tests.capacity.profiles import workload
from tests.capacity.test_search import SCENE, counted

SHORT = Effort(seeds=5, requests=200)


def missing(monkeypatch: pytest.MonkeyPatch, shares: dict[float, float]) -> None:
    """Have the calls of each load miss their promise in these shares; of other loads none. Loads are of two digits."""
    capacity = highest_rate(SCENE, Effort())

    def world(scene: Scene, rate: float, requests: int, seed: int) -> RunResult:
        result = run(scene, 1.0, requests, seed)
        late = round(shares.get(round(rate / capacity, 2), 0.0) * len(result.calls))
        calls = (replace(one, ttft=9.0 if place < late else 0.0) for place, one in enumerate(result.calls))
        return replace(result, calls=tuple(calls))

    monkeypatch.setattr(search, "run", world)


@pytest.mark.deep
def test_a_sketch_is_near_to_what_full_effort_proves_for_fewer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = counted(monkeypatch)
    proven = operating_point(SCENE, Effort())
    most = sum(runs.values())
    runs.clear()
    about = sketched(SCENE, Effort())
    assert about.mu[1] == pytest.approx(proven.mu[1], rel=0.1)
    assert sum(runs.values()) < most / 2
    assert about.points[1].rate <= about.mu[1] and "are within the promise" in about.next_fails[1]


@pytest.mark.parametrize(
    ("shares", "load"),
    [
        # The promise allows 10 % to miss, a sketch 55 % of them; between two rates misses grow on a straight line.
        ({1.0: 0.4, 0.85: 0.1, 0.72: 0.0}, 0.79),
        ({1.0: 0.4, 0.85: 0.0}, 0.87),
        # An unlucky rate below a lucky one: together they are taken for what they are in the mean.
        ({1.0: 0.2, 0.85: 0.05, 0.72: 0.1, 0.61: 0.0, 0.52: 0.0}, 0.69),
    ],
)
def test_misses_grow_with_the_rate(monkeypatch: pytest.MonkeyPatch, shares: dict[float, float], load: float) -> None:
    missing(monkeypatch, shares)
    assert sketched(SCENE, SHORT).mu[1] == pytest.approx(load * highest_rate(SCENE, Effort()), rel=0.02)


def test_a_workload_that_no_rate_serves_is_refused() -> None:
    never = replace(SCENE, workload=workload(promises={"interactive": Promise(ttft=1e-3, tpot=0.1)}))
    with pytest.raises(PlanRefused, match="no rate keeps the promise"):
        sketched(never, SHORT)


def test_an_accelerator_with_room_to_spare_is_sketched_in_a_few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    patient = msgspec.structs.replace(SCENE.workload, promises={"interactive": Promise(ttft=600.0, tpot=60.0)})
    runs = counted(monkeypatch)
    scene = replace(SCENE, workload=patient)
    assert sketched(scene, SHORT).mu[1] == highest_rate(scene, Effort())
    assert sum(runs.values()) <= 2
