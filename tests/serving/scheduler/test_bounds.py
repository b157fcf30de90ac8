"""The scheduler's rules with a number: each just below its bound, at it, and above."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from serving.core import LatencyClass, Status
from serving.errors import QueueFull
from serving.scheduler.accounts import Accounts
from serving.scheduler.admission import Admission, Backlog, Outlook, Prediction, predict
from serving.scheduler.cost_model import CostModel
from serving.scheduler.fairness import Prices, VirtualCounters
from serving.scheduler.limits import Limits
from serving.scheduler.preemption import LATE, MAX_PREEMPTIONS, victims_for
from serving.scheduler.queues import WaitQueue
from serving.scheduler.restore import patience_for
from serving.scheduler.restores import AHEAD, POOL_SHARE
from serving.scheduler.slo import Target, Targets
from serving.steps import Chunk, StepShape
from tests.serving.scheduler.fakes import FakeResidency, planner, run_step, sequence
from tests.serving.scheduler.test_restores import At, document

INTERACTIVE, STANDARD, BATCH = LatencyClass
TARGETS = Targets(Target(1.0, 0.1, 0.0), Target(5.0, 0.25, 10.0), Target(60.0, 1.0, 60.0))
JUST = 1e-6
LIMITS = Limits(64, 4, 10, max_tenant_queue=3)


# -- who gives way ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "goes"), [(0, True), (MAX_PREEMPTIONS - 1, True), (MAX_PREEMPTIONS, False)])
def test_a_sequence_that_was_preempted_three_times_is_not_preempted_for_better_classes_again(
    before: int, goes: bool
) -> None:
    running, newcomer = sequence(8, latency_class=BATCH), sequence(8, latency_class=INTERACTIVE)
    running.preemptions = before
    assert MAX_PREEMPTIONS == 3
    assert victims_for(newcomer, [running], TARGETS, now=1.0, seats=1, blocks=0) == ([running] if goes else [])


def test_of_late_newcomers_without_end_only_three_take_the_place_of_a_batch() -> None:
    plans = planner(seqs=1, targets=TARGETS)
    batch = sequence([1] * 4, tokens=40, latency_class=BATCH)
    plans.add(batch)
    now, displaced = 0.0, 0
    for number in range(5):
        run_step(plans, now)  # the batch's
        assert batch.status is Status.RUNNING
        newcomer = sequence([2 + number] * 4, tokens=1, latency_class=INTERACTIVE, arrival=now)
        plans.add(newcomer)
        run_step(plans, now + 0.1)  # no seat, and not late
        run_step(plans, now + 0.5)
        if newcomer.status is Status.FINISHED:
            displaced += 1
        else:
            plans.finish(newcomer)
        now += 1.0
    assert displaced == batch.preemptions == plans.preemptions == 3


@pytest.mark.parametrize(("share", "goes"), [(LATE - JUST, False), (LATE, True), (LATE + JUST, True)])
@pytest.mark.parametrize("latency_class", [INTERACTIVE, STANDARD])
def test_a_newcomer_preempts_others_once_a_quarter_of_its_time_is_over(
    latency_class: LatencyClass, share: float, goes: bool
) -> None:
    running, newcomer = sequence(8, latency_class=BATCH), sequence(8, latency_class=latency_class)
    now = share * TARGETS.of(newcomer).ttft
    assert LATE == 0.25
    assert bool(victims_for(newcomer, [running], TARGETS, now=now, seats=1, blocks=0)) is goes


def test_of_victims_with_the_same_slack_the_one_that_is_cheapest_to_compute_again_goes() -> None:
    short, long = sequence(8, latency_class=BATCH), sequence(80, latency_class=BATCH)
    for one in (short, long):
        one.planned = one.length
    newcomer = sequence(4, latency_class=INTERACTIVE)
    for running in ([short, long], [long, short]):
        assert victims_for(newcomer, running, TARGETS, now=1.0, seats=1, blocks=0) == [short]


# -- ageing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latency_class", [STANDARD, BATCH])
@pytest.mark.parametrize(("after", "aged"), [(-JUST, False), (0.0, True), (JUST, True)])
def test_a_sequence_is_of_the_best_class_once_its_class_has_waited_for_its_time(
    latency_class: LatencyClass, after: float, aged: bool
) -> None:
    one = sequence(4, latency_class=latency_class, arrival=7.0)
    now = 7.0 + TARGETS.of(one).max_wait + after
    assert TARGETS.rank(one, now) == (0 if aged else latency_class.value)
    queue = WaitQueue(TARGETS)
    queue.push(one)
    queue.age(now)
    assert queue.starving == (latency_class.value if aged else None)


@pytest.mark.parametrize(("deadline", "due"), [(None, 5.0), (4.0, 4.0), (6.0, 5.0)])
def test_a_first_token_is_due_by_its_class_or_sooner_by_its_deadline(deadline: float | None, due: float) -> None:
    assert TARGETS.due(sequence(4, deadline=deadline)) == due


@pytest.mark.parametrize(("produced", "goes_first"), [(0, False), (1, True)])
def test_a_sequence_that_was_interrupted_after_its_first_token_goes_before_new_ones(
    produced: int, goes_first: bool
) -> None:
    queue, new, old = WaitQueue(TARGETS), sequence(4, arrival=0.0), sequence(4, arrival=1.0)
    old.tokens += [7] * produced
    queue.push(new)
    queue.push(old)
    assert next(queue.in_turn(lambda tenant, first: 0.0)) is (old if goes_first else new)


# -- what is charged ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("idle", "charged"), [(0.5, 0.5), (1.0, 1.0), (1.5, 1.0), (3600.0, 1.0)])
def test_kv_that_is_held_while_nothing_is_planned_costs_a_second_at_most(idle: float, charged: float) -> None:
    prices, holder = Prices(), sequence(4)
    holder.blocks = [1, 2, 3]
    accounts = Accounts(prices, FakeResidency())
    accounts.join(holder)
    accounts.settle([holder], 10.0)
    accounts.settle([holder], 10.0 + idle)
    assert accounts.of("t") == pytest.approx(3 * charged * prices.block_second)


@pytest.mark.parametrize(("known", "charged"), [(0, 10), (6, 4), (10, 0), (12, 0)])
def test_tokens_are_charged_once_however_often_they_are_computed(known: int, charged: int) -> None:
    accounts, one = Accounts(Prices(), FakeResidency()), sequence(20)
    accounts.join(one)
    one.charged = known
    accounts.charge(Chunk(one, 0, 10))
    assert accounts.of("t") == charged and one.charged == max(10, known)


def test_a_tenant_that_was_away_gets_no_credit_for_that_time() -> None:
    counters = VirtualCounters()
    counters.join("early", 1.0)
    counters.charge("early", 5.0)
    counters.leave("early")
    counters.join("busy", 1.0)
    counters.charge("busy", 100.0)
    counters.join("early", 1.0)
    assert counters.of("early") >= 100.0 and counters.gap() <= 5.0


# -- admission ----------------------------------------------------------------------------------------------------


def predicted(others: Mapping[str, Backlog], *, own: int = 0, load: float = 0.0, **request: Any) -> Prediction:
    waiting = dict(others) | ({"me": Backlog(own, own * 10)} if own else {})
    outlook = Outlook(waiting={STANDARD: waiting})
    asked = sequence(10, tenant="me", **request).request
    return predict(outlook, CostModel(), LIMITS, asked, load, 0)


@pytest.mark.parametrize("own", [0, 1, 2])
def test_as_many_requests_of_each_other_tenant_and_one_more_are_served_before_a_tenant_s_next(own: int) -> None:
    def queue(count: int) -> float:
        return predicted({"other": Backlog(count, count * 10)}, own=own).queue

    for count in range(1, own + 1):
        assert queue(count) < queue(count + 1)
    assert queue(own + 1) == queue(own + 2) == queue(own + 50) > predicted({}, own=own).queue


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_loading_an_adapter_overlaps_with_waiting(share: float) -> None:
    idle = predicted({"other": Backlog(1, 10)})
    assert idle.queue > 0 and idle.prefill > 0
    loading = predicted({"other": Backlog(1, 10)}, load=share * idle.queue)
    assert loading.first_token == idle.first_token == pytest.approx(idle.queue + idle.prefill)


def test_of_a_load_that_takes_longer_than_waiting_only_the_rest_is_added() -> None:
    idle = predicted({"other": Backlog(1, 10)})
    slow = predicted({"other": Backlog(1, 10)}, load=3 * idle.queue)
    assert slow.first_token == pytest.approx(3 * idle.queue + idle.prefill)


@pytest.mark.parametrize(("late", "advice"), [(0.5, 1.0), (1.5, 1.5), (59.5, 59.5), (61.0, 60.0), (1e6, 60.0)])
def test_a_refusal_advises_to_come_back_after_a_second_at_least_and_a_minute_at_most(
    late: float, advice: float
) -> None:
    desk = Admission(LIMITS, CostModel())
    on_time = predict(Outlook(), CostModel(), LIMITS, sequence(4).request, 0.0, 0).prefill
    with pytest.raises(QueueFull) as refusal:
        desk.admit(sequence(4, deadline=on_time).request, 0.0, late, 0)
    assert refusal.value.code == "deadline_unmeetable" and refusal.value.retry_after == pytest.approx(advice)


# -- restores -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("restore", "slack", "expected"),
    [
        (1.0, 2.0, 1.0),  # half of the slack
        (1.0 + JUST, 2.0, None),
        (1.2, 100.0, 1.2),  # four times the seconds of computing
        (1.2 + JUST, 100.0, None),
    ],
)
def test_a_restore_that_is_slower_than_computing_takes_half_of_the_slack_and_four_times_the_time_at_most(
    restore: float, slack: float, expected: float | None
) -> None:
    assert patience_for(0.0, restore, 0.3, slack) == (None if expected is None else pytest.approx(expected))


def test_the_restores_of_the_first_eight_in_line_are_begun_and_no_others() -> None:
    at = At(blocks=41, seconds=1e-4, seqs=1)
    at.serve(*(document(number, blocks=1) for number in range(60)))
    at.disk._seconds = 1000.0
    blocker = document(99, blocks=1, tokens=100)
    at.plans.add(blocker)
    at.step()
    waiting = [document(number, blocks=1) for number in range(12)]
    for one in waiting:
        at.plans.add(one)
    at.step()
    assert AHEAD == 8
    assert [at.plans.restores.restoring(one) for one in waiting] == [True] * 8 + [False] * 4


def test_restored_blocks_of_those_that_wait_take_a_quarter_of_the_pool_at_most() -> None:
    at = At(blocks=41, seconds=1e-3, seqs=1, slots=400)
    at.serve(*(document(number) for number in range(30)))
    at.plans.add(document(99, blocks=2, tokens=60))
    at.step()
    waiting = [document(number) for number in range(8)]
    for one in waiting:
        at.plans.add(one)
    held = 0
    for _ in range(40):
        at.step()
        held = max(held, len(list(at.plans.restores.held)))
    assert POOL_SHARE == 0.25 and at.pool.limit == 40
    assert 10 - 4 < held <= 10, "whole prefixes of four blocks, and no more than ten"


# -- the cost model -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("learned", "clipped"), [(3, False), (4, True)])
def test_after_four_measurements_an_absurd_one_counts_as_four_times_the_prediction_at_most(
    learned: int, clipped: bool
) -> None:
    def taught(last: float) -> tuple[float, ...]:
        model, shape = CostModel(), StepShape()
        shape.add_decode(10, None, 0)
        for _ in range(learned):
            model.observe(shape, model.predict(shape))
        model.observe(shape, last * model.predict(shape))
        return model.coefficients

    assert (taught(4.0) == taught(1000.0)) is clipped
    assert taught(4.0) != taught(3.9)
