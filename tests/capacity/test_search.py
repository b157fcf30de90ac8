"""The search for the highest rate spares simulations, and what it returns is proven all the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from capacity import search
from capacity.operating import Effort, highest_rate, measure
from capacity.runs import RunResult
from capacity.search import PRECISION, KeptRuns, operating_point
from capacity.simulate import Scene, run
from capacity.workload import Promise
from tests.capacity.profiles import profile, workload

EFFORT = Effort(seeds=5, requests=200)
SCENE = Scene(profile(), workload(promises={"interactive": Promise(ttft=0.2, tpot=0.1)}))


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, float, int]]:
    """Count the simulated runs of each replica count, rate and seed from now on."""
    runs: Counter[tuple[int, float, int]] = Counter()

    def told(scene: Scene, rate: float, requests: int, seed: int) -> RunResult:
        runs[scene.replicas, rate, seed] += 1
        return run(scene, rate, requests, seed)

    monkeypatch.setattr(search, "run", told)
    return runs


def test_the_point_is_the_one_that_every_seed_proves_and_a_little_more_fails() -> None:
    found = operating_point(SCENE, EFFORT)
    capacity = highest_rate(SCENE, EFFORT)
    assert found.points[1].seeds == EFFORT.seeds
    assert found.points[1] == measure(SCENE, found.mu[1], capacity, EFFORT)
    assert found.points[1].attainment.low >= SCENE.workload.alpha
    above = measure(SCENE, found.mu[1] * (1 + 2 * PRECISION), capacity, EFFORT)
    assert above.attainment.low < SCENE.workload.alpha


def test_no_run_is_simulated_twice_and_far_from_the_cliff_two_seeds_do(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = counted(monkeypatch)
    found = operating_point(SCENE, EFFORT, replicas=(1, 2))
    assert set(runs.values()) == {1}
    seeds = Counter((replicas, rate) for replicas, rate, _ in runs)
    assert seeds[1, found.mu[1]] == seeds[2, found.mu[2]] == EFFORT.seeds
    assert min(seeds.values()) <= 2 < max(seeds.values())
    assert sum(runs.values()) < EFFORT.seeds * len(seeds)


def test_another_promise_uses_the_same_runs_and_finds_what_it_would_have_found_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lesser = replace(SCENE, workload=workload(promises={"interactive": Promise(ttft=0.4, tpot=0.2)}))
    shared, runs = KeptRuns(), counted(monkeypatch)
    first = operating_point(SCENE, EFFORT, runs=shared)
    second = operating_point(lesser, EFFORT, near=first.mu[1], runs=shared)
    assert set(runs.values()) == {1}, "the second promise counts the runs of the first"
    together = sum(runs.values())
    runs.clear()
    assert second == operating_point(lesser, EFFORT, near=first.mu[1])
    operating_point(SCENE, EFFORT)
    assert second.mu[1] > first.mu[1]
    assert sum(runs.values()) > together


def test_first_seeds_that_mislead_do_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    def world(scene: Scene, rate: float, requests: int, seed: int) -> RunResult:
        result = run(scene, 1.0, requests, seed)
        kept = 1.0 if seed <= 2 else 0.5 if rate > 4.0 else 1.0  # the first seeds never see what the others see
        late = [
            replace(call, ttft=0.0 if place < kept * len(result.calls) else 9.0)
            for place, call in enumerate(result.calls)
        ]
        return replace(result, calls=tuple(late))

    monkeypatch.setattr(search, "run", world)
    found = operating_point(SCENE, EFFORT)
    assert 4.0 / (1 + PRECISION) <= found.mu[1] <= 4.0
    assert found.points[1].seeds == EFFORT.seeds and found.points[1].attainment.low >= SCENE.workload.alpha


def test_settings_have_runs_of_their_own() -> None:
    runs = KeptRuns()
    small = replace(SCENE, profile=profile(replica=msgspec.structs.replace(SCENE.profile.replica, max_num_seqs=2)))
    wide, narrow = runs.run(SCENE, 6.0, 60, 1), runs.run(small, 6.0, 60, 1)
    assert wide.ttft().mean() < narrow.ttft().mean()
    assert runs.run(SCENE, 6.0, 60, 1) is wide
