"""A pool's figures are those of replicas that have warmed up, and a lie in one of them stays small."""

from __future__ import annotations

import pytest

from routing import wait_of_calls
from serving.fleet.figures import Sample, gather


def told(at: float, **figures: float) -> Sample:
    return Sample.of({"steps": 5_000, "seats": 16, "running": 8, **figures}, at=at)


def test_rates_come_from_counters_and_service_from_little_s_law() -> None:
    before = {name: told(0.0, ended=100, busy_s=50, reload_s=1) for name in "ab"}
    now = {name: told(10.0, ended=140, busy_s=60, reload_s=2, running=8) for name in "ab"}
    found = gather(before, now, at=10.0, replicas=3)
    assert (found.ready, found.replicas, found.seats, found.busy) == (2, 3, 16.0, 16)
    assert found.service_s == pytest.approx(2.0) and found.arrivals == pytest.approx(8.0)
    assert found.reload_share == pytest.approx(0.1)
    assert gather(before, now, at=10.0, replicas=3, arrivals=9.5).arrivals == 9.5
    assert gather(before, now, at=10.0, replicas=3, arrivals=2.0).arrivals == pytest.approx(8.0)


def test_the_first_steps_of_a_replica_teach_nothing() -> None:
    before = {"old": told(0.0, ended=100), "new": told(0.0, steps=10, ended=0)}
    now = {"old": told(10.0, ended=140), "new": told(10.0, steps=90, ended=1, running=16, interactive_s=60)}
    found = gather(before, now, at=10.0, replicas=2)
    assert found.ready == 2 and found.service_s == pytest.approx(2.0) and found.wait_over_target == 0.0
    cold = {"new": now["new"]}
    nothing = gather({}, cold, at=10.0, replicas=1)
    assert nothing.wait_over_target is None and nothing.arrivals is None and nothing.seats is None


def test_a_pool_is_late_when_a_call_that_is_sent_on_finds_no_better_replica() -> None:
    assert wait_of_calls([]) is None
    assert wait_of_calls([3.0]) == 3.0
    assert wait_of_calls([0.1, 3.0]) == 3.0
    assert wait_of_calls([0.1] * 19 + [9.0]) == 0.1, "one busy home is no lack of replicas"
    assert wait_of_calls([0.1] * 7 + [9.0] * 13) == 9.0


def test_each_class_is_held_against_its_own_target() -> None:
    assert told(0.0, interactive_s=2.0, standard_s=2.0).wait_over_target == 2.0
    assert told(0.0, batch_s=30.0).wait_over_target == 0.5


def test_a_counter_that_began_again_and_absurd_figures_count_as_nothing() -> None:
    found = gather({"a": told(0.0, ended=900)}, {"a": told(10.0, ended=4)}, at=10.0, replicas=1)
    assert found.service_s is None and found.arrivals == 0.0
    odd = Sample.of({"steps": float("nan"), "seats": -4, "running": True, "unknown": 7.0}, at=1.0)
    assert odd == Sample(1.0)
