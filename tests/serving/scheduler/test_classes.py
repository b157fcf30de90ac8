"""Latency classes: order, bounded step times, ageing, who gives way to whom."""

from __future__ import annotations

from serving.core import LatencyClass, Sequence, Status
from serving.scheduler.planner import Planner
from serving.scheduler.slo import Target, Targets
from tests.serving.scheduler.fakes import FakeResidency, planner, run_step, sequence

INTERACTIVE, STANDARD, BATCH = LatencyClass
TARGETS = Targets(Target(1.0, 0.1, 0.0), Target(5.0, 0.25, 10.0), Target(60.0, 1.0, 60.0))


def started(plans: Planner, now: float = 0.0) -> list[Sequence]:
    return [chunk.sequence for chunk in plans.plan(now).chunks]


def test_better_classes_go_first_whoever_came_before() -> None:
    plans = planner(seqs=2, targets=TARGETS)
    batch, standard, urgent = (sequence([i] * 4, latency_class=c) for i, c in enumerate((BATCH, STANDARD, INTERACTIVE)))
    for seq in (batch, standard, urgent):
        plans.add(seq)
    assert started(plans) == [urgent, standard]


def test_a_class_that_waited_too_long_gets_every_fourth_turn() -> None:
    plans = planner(seqs=8, targets=TARGETS)
    old = [sequence([1, i] * 2, latency_class=BATCH) for i in range(3)]
    new = [sequence([2, i] * 2, latency_class=INTERACTIVE, arrival=60.5) for i in range(8)]
    for seq in (*old, *new):
        plans.add(seq)
    assert started(plans, 61.0) == [*new[:3], old[0], *new[3:6], old[1]]
    assert plans.waiting.aged == 3


def test_ageing_takes_nothing_from_a_tenant_of_the_same_class_that_weighs_more() -> None:
    plans = planner(seqs=1, caching=False, targets=TARGETS)
    served = {"light": 0, "heavy": 0}
    now = 0.0
    for _ in range(2000):
        for tenant, weight in (("light", 1.0), ("heavy", 4.0)):
            while plans.waiting.waiting_of(tenant) < 4:
                plans.add(sequence(4, tenant=tenant, weight=weight, tokens=2, arrival=now))
        for seq in run_step(plans, now):
            served[seq.request.tenant] += 1
        now += 1.0
    assert plans.waiting.aged > 20 and 3.5 < served["heavy"] / served["light"] < 4.5


def test_within_a_tenant_the_earliest_deadline_goes_first() -> None:
    plans = planner(seqs=1)
    late, soon = sequence([1] * 4, deadline=50.0), sequence([2] * 4, deadline=2.0)
    plans.add(late)
    plans.add(soon)
    assert started(plans) == [soon]


def test_requests_that_begin_alike_follow_one_another_for_a_quantum_only() -> None:
    plans = planner(seqs=8, budget=500, blocks=400)
    plans.limits = type(plans.limits)(500, 8, 100, quantum=50.0)
    alike = [sequence([9] * 30, tenant="a", scope="a") for _ in range(4)]
    other = sequence([i for i in range(30)], tenant="b", scope="b")
    for seq in [*alike, other]:
        plans.add(seq)
    plans.pool.caching = False
    assert started(plans) == [*alike[:2], other, *alike[2:]]


def test_prompts_are_cut_so_that_a_running_stream_keeps_its_pace() -> None:
    plans = planner(budget=512, blocks=600, targets=TARGETS)
    stream = sequence([1] * 4, tokens=50, latency_class=INTERACTIVE)
    plans.add(stream)
    run_step(plans, 0.0)
    plans.add(sequence(list(range(1000, 1500)), latency_class=BATCH))
    plan = plans.plan(0.01)
    decode, prefill = plan.chunks
    assert decode.sequence is stream and 32 <= prefill.count < 200
    assert plan.predicted_seconds <= 0.09 + 0.005
    assert prefill.end % plans.pool.block_size == 0


def test_long_prompts_progress_even_when_streams_have_no_time_left() -> None:
    plans = planner(budget=512, blocks=600, targets=TARGETS)
    plans.add(sequence([1] * 4, tokens=50, latency_class=INTERACTIVE))
    run_step(plans, 0.0)
    plans.add(sequence(list(range(1000, 1500))))
    assert [chunk.count for chunk in plans.plan(5.0).chunks] == [1, plans.limits.min_prefill_tokens]


def test_without_streams_a_prompt_takes_the_whole_step() -> None:
    plans = planner(budget=512, blocks=600, targets=TARGETS)
    plans.add(sequence(list(range(400)), latency_class=INTERACTIVE))
    assert plans.plan(0.0).chunks[0].count == 400


def test_streams_of_lower_classes_skip_steps_that_would_be_late_for_better_ones_but_never_for_long() -> None:
    plans = planner(seqs=64, budget=64, blocks=400, targets=TARGETS)
    slow = [sequence([i] * 2, tokens=40, latency_class=BATCH, tenant=f"t{i}") for i in range(60)]
    fast = sequence([99] * 2, tokens=40, latency_class=INTERACTIVE)
    for seq in [*slow, fast]:
        plans.add(seq)
    for step in range(20):
        run_step(plans, step * 0.001)
    assert len(plans.running) == 61
    now = fast.last_token_at
    assert now is not None
    assert started(plans, now + 0.01) == [fast]
    assert len(started(plans, now + 0.9)) == 61


def test_a_late_newcomer_takes_the_place_of_a_lower_class_and_never_of_its_own() -> None:
    plans = planner(seqs=1, targets=TARGETS)
    batch = sequence([1] * 4, tokens=40, latency_class=BATCH)
    plans.add(batch)
    run_step(plans, 0.0)
    urgent = sequence([2] * 4, tokens=40, latency_class=INTERACTIVE)
    plans.add(urgent)
    for now in (0.1, 0.2):
        assert run_step(plans, now) == [batch]  # found no seat, and is not late yet
    assert run_step(plans, 0.3) == [urgent] and batch.status is Status.WAITING and batch.preemptions == 1
    rival = sequence([3] * 4, latency_class=INTERACTIVE, arrival=0.4)
    plans.add(rival)
    for now in (5.0, 5.1, 5.2):
        assert run_step(plans, now) == [urgent]
    assert plans.preemptions == 1


def test_a_preempted_sequence_finds_its_prefix_cached_when_it_comes_back() -> None:
    plans = planner(seqs=1, targets=TARGETS)
    batch = sequence(list(range(40)), tokens=3, latency_class=BATCH)
    plans.add(batch)
    run_step(plans, 0.0)
    plans.add(sequence([2] * 4, tokens=1, latency_class=INTERACTIVE))
    run_step(plans, 1.0)
    assert run_step(plans, 1.1)[0] is not batch
    chunk = plans.plan(1.2).chunks[0]
    assert chunk.sequence is batch and chunk.start == 40 and batch.cached_tokens == 0


def test_siblings_wait_for_the_prompt_that_one_of_them_computes() -> None:
    plans = planner(budget=512)
    first, *others = (sequence(list(range(33)), tokens=4) for _ in range(4))
    for seq in (first, *others):
        plans.add(seq)
    assert run_step(plans) == [first]
    assert sorted(chunk.count for chunk in plans.plan(0.0).chunks) == [1, 1, 1, 1]
    assert all(seq.cached_tokens == 32 for seq in others)


def test_siblings_are_computed_side_by_side_without_a_cache() -> None:
    plans = planner(budget=512, caching=False)
    for _ in range(4):
        plans.add(sequence(list(range(33)), tokens=4))
    assert [chunk.count for chunk in plans.plan(0.0).chunks] == [33] * 4


def test_only_adapters_that_are_next_in_line_are_wanted_tenants_in_turn() -> None:
    plans = planner(FakeResidency(), seqs=3)
    for i in range(5):
        plans.add(sequence(4, digest=f"a{i}", tenant="a"))
    plans.add(sequence(4, digest="b0", tenant="b"))
    assert plans.plan(0.0).wanted == ["a0", "b0", "a1"]


def test_a_step_made_while_another_is_in_flight_counts_its_token() -> None:
    plans = planner()
    seq = sequence(4, tokens=3)
    plans.add(seq)
    first = plans.plan(0.0).chunks[0]
    second = plans.plan(0.0).chunks[0]
    assert (second.start, second.count, second.samples) == (4, 1, True)
    assert plans.commit(first, 0.0)
    seq.tokens.append(7)
    third = plans.plan(0.0).chunks[0]
    assert third.start == 5
    assert plans.commit(second, 0.0)
    seq.tokens.append(7)
    assert plans.plan(0.0).chunks == []  # the third token is in flight and the last one
    plans.check_integrity()


def test_a_token_sampled_for_a_finished_sequence_is_dropped() -> None:
    plans = planner()
    seq = sequence(4, tokens=3)
    plans.add(seq)
    chunk = plans.plan(0.0).chunks[0]
    plans.finish(seq)
    assert not plans.commit(chunk, 0.0) and plans.pool.used == 0
    plans.check_integrity()
