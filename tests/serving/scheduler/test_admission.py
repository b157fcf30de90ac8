"""Refusals at admission, and their advice."""

from __future__ import annotations

import pytest

from serving.core import LatencyClass
from serving.errors import QueueFull
from serving.scheduler.admission import Admission, observe, predict
from serving.scheduler.cost_model import CostModel
from serving.scheduler.limits import Limits
from serving.scheduler.planner import Planner
from tests.serving.scheduler.fakes import planner, run_step, sequence

LIMITS = Limits(64, 4, 10, max_tenant_queue=3)


def admission() -> Admission:
    return Admission(LIMITS, CostModel())


def test_a_full_queue_refuses_and_counts_what_was_just_admitted() -> None:
    desk = admission()
    for i in range(10):
        desk.admit(sequence(4, tenant=f"t{i}").request, 0.0, 0.0, 0)
    with pytest.raises(QueueFull) as refusal:
        desk.admit(sequence(4, tenant="last").request, 0.0, 0.0, 0)
    assert refusal.value.code == "queue_full" and 1 <= refusal.value.retry_after <= 60
    assert desk.refused["queue_full"] == 1


def test_one_tenant_cannot_fill_the_queue() -> None:
    desk = admission()
    for _ in range(3):
        desk.admit(sequence(4, tenant="greedy").request, 0.0, 0.0, 0)
    with pytest.raises(QueueFull) as refusal:
        desk.admit(sequence(4, tenant="greedy").request, 0.0, 0.0, 0)
    assert refusal.value.code == "tenant_queue_full"
    desk.admit(sequence(4, tenant="modest").request, 0.0, 0.0, 0)


def test_a_deadline_that_the_load_alone_exceeds_is_refused_with_the_time_it_lacks() -> None:
    desk = admission()
    with pytest.raises(QueueFull) as refusal:
        desk.admit(sequence(4, digest="a", deadline=2.0).request, 0.0, 7.0, 8)
    assert refusal.value.code == "deadline_unmeetable" and 5 <= refusal.value.retry_after < 6
    desk.admit(sequence(4, digest="a", deadline=20.0).request, 0.0, 7.0, 8)


def crowded(count: int, latency_class: LatencyClass = LatencyClass.STANDARD, tenant: str = "crowd") -> Planner:
    plans = planner(seqs=2, blocks=4000)
    for i in range(count):
        plans.add(sequence([i] * 100, tokens=50, tenant=tenant, latency_class=latency_class))
    run_step(plans)
    return plans


def seconds(plans: Planner, tenant: str, latency_class: LatencyClass) -> float:
    request = sequence(10, tenant=tenant, latency_class=latency_class).request
    return predict(observe(plans), plans.costs, plans.limits, request, 0.0, 0).first_token


def test_the_predicted_wait_grows_with_what_is_ahead_and_not_with_what_is_behind() -> None:
    short, long = crowded(3), crowded(60)
    assert seconds(long, "crowd", LatencyClass.STANDARD) > 5 * seconds(short, "crowd", LatencyClass.STANDARD)
    assert seconds(long, "new", LatencyClass.STANDARD) < 0.2 * seconds(long, "crowd", LatencyClass.STANDARD)
    behind = crowded(60, LatencyClass.BATCH)
    assert seconds(behind, "crowd", LatencyClass.INTERACTIVE) < 0.2 * seconds(long, "crowd", LatencyClass.STANDARD)


def test_requests_the_outlook_knows_are_not_counted_twice() -> None:
    desk, plans = admission(), planner(seqs=1)
    running, waiting = sequence([1] * 4), sequence([2] * 4)
    for seq in (running, waiting):
        desk.admit(seq.request, 0.0, 0.0, 0)
        desk.arrived(seq.request)
        plans.add(seq)
    run_step(plans)
    desk.update(plans)
    for _ in range(2):
        desk.admit(sequence(4).request, 0.0, 0.0, 0)
    with pytest.raises(QueueFull):
        desk.admit(sequence(4).request, 0.0, 0.0, 0)
