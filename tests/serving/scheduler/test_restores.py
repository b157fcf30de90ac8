"""Waiting sequences have spilled KV restored or compute it again, in time and within their share of the pool."""

from __future__ import annotations

import random
from typing import Any

import pytest

from serving.core import LatencyClass, Sequence
from serving.errors import QueueFull
from serving.kv.level import State
from serving.kv.pool import BlockPool
from serving.kv.tiers import Tiers
from serving.scheduler.admission import Admission
from serving.scheduler.limits import Limits
from serving.scheduler.planner import Planner
from serving.scheduler.restore import patience_for
from serving.steps import StepPlan
from tests.serving.scheduler.fakes import FakeResidency, sequence
from tests.serving.scheduler.simulated_store import SimulatedStore

SIZE = 4


class At:
    """A planner over `blocks` blocks and a disk of `slots`, whose copies take `seconds`, at a time of its own."""

    def __init__(self, blocks: int, seconds: float, *, seqs: int = 4, slots: int = 200) -> None:
        self.now = 0.0
        self.pool = BlockPool(blocks, SIZE)
        rng = random.Random(1)
        self.disk = SimulatedStore("disk", slots, seconds, lambda: self.now, rng)
        self.disk.stalls, self.disk._most, self.disk._rng = False, 1000, _Steady()
        self.plans = Planner(
            Limits(400, seqs, 100),
            self.pool,
            FakeResidency("a", "b"),
            "fingerprint",
            tiers=Tiers(self.pool, [self.disk], _Copies()),
        )

    def step(self, seconds: float = 0.01) -> StepPlan:
        plan = self.plans.plan(self.now)
        self.now += seconds
        for chunk in plan.chunks:
            samples = chunk.samples
            if self.plans.commit(chunk, self.now) and samples:
                chunk.sequence.tokens.append(1)
                if chunk.sequence.output_tokens >= chunk.sequence.request.max_tokens:
                    self.plans.finish(chunk.sequence)
        self.plans.check_integrity()
        return plan

    def serve(self, *sequences: Sequence) -> None:
        """Serve sequences to their end, one after the other."""
        for one in sequences:
            self.plans.add(one)
            for _ in range(200):
                if not self.plans.sequences():
                    break
                self.step()
            assert not self.plans.sequences()
        self.now += 100 * self.disk._seconds  # what was spilled is written
        self.step()


class _Copies:
    def save(self, block: int, out: memoryview) -> None: ...
    def restore(self, block: int, data: memoryview) -> None: ...


class _Steady(random.Random):
    """Copies neither fail nor vary."""

    def random(self) -> float:
        return 0.5

    def uniform(self, a: float, b: float) -> float:
        return 1.0


def document(number: int, blocks: int = 4, tokens: int = 1, **options: Any) -> Sequence:
    prompt = [1 + number * 1000 + i for i in range(blocks * SIZE)] + [0]
    return sequence(prompt, tokens=tokens, **options)


@pytest.mark.parametrize(
    ("turn", "restore", "recompute", "slack", "expected"),
    [
        (0.0, 0.1, 0.3, 0.0, 0.3),  # sooner than computing: waits for as long as that would take
        (5.0, 4.0, 0.1, 0.0, 0.1),  # done before its turn: free
        (0.0, 0.5, 0.3, 0.4, None),  # later, and in a hurry
        (0.0, 0.5, 0.3, 10.0, 1.2),  # later, but it has time, and others get what computing would take
        (0.0, 5.0, 0.3, 60.0, None),  # so much later that the time is worth more
        (0.0, 0.5, 0.3, -1.0, None),  # late already
    ],
)
def test_a_restore_is_chosen_by_what_comes_first_and_by_the_time_there_is(
    turn: float, restore: float, recompute: float, slack: float, expected: float | None
) -> None:
    assert patience_for(turn, restore, recompute, slack) == expected


def test_a_spilled_prefix_is_restored_before_its_sequence_starts_and_counts_as_cached() -> None:
    at = At(blocks=20, seconds=1e-4)
    at.serve(*(document(number) for number in range(6)))
    again = document(0)
    assert at.plans.restores.tiers.state(next(at.plans.tables.keys_of(again.request))) is State.SPILLED
    at.plans.add(again)
    assert not at.step().chunks and at.plans.restores.restoring(again)
    assert again.status.value == "waiting"
    plan = at.step()
    assert [chunk.sequence for chunk in plan.chunks] == [again]
    assert again.cached_tokens == 4 * SIZE and at.plans.restores.counts.done == 1
    assert not at.plans.restores.held


def test_a_slow_disk_is_not_waited_for() -> None:
    at = At(blocks=20, seconds=1e-4)
    at.serve(*(document(number) for number in range(6)))
    at.plans.restores.tiers.levels[0].seconds_each = 60.0
    again = document(0)
    at.plans.add(again)
    assert at.step().chunks and again.cached_tokens == 0
    assert at.plans.restores.counts.begun == 0


def test_a_restore_that_does_not_end_is_given_up_once_computing_would_have() -> None:
    at = At(blocks=20, seconds=1e-4)
    at.serve(*(document(number) for number in range(6)))
    at.disk._seconds = 1000.0
    again = document(0)
    at.plans.add(again)
    assert not at.step(0.001).chunks
    recompute = at.plans.costs.prefill_seconds(4 * SIZE, 0, 400)
    at.now += 1.1 * recompute
    assert at.step().chunks and again.cached_tokens == 0
    assert at.plans.restores.counts.given_up == 1


def test_restores_of_those_in_line_run_while_another_computes() -> None:
    at = At(blocks=40, seconds=1e-3, seqs=1)
    at.serve(*(document(number) for number in range(12)))
    first, second = document(50, blocks=6, tokens=10), document(0)
    at.plans.add(first)
    at.step()
    at.plans.add(second)
    for _ in range(3):
        assert [chunk.sequence for chunk in at.step().chunks] == [first]
    assert at.plans.restores.counts.done == 1 and len(at.plans.restores.held) == 4


def test_blocks_held_for_those_in_line_give_way_to_what_runs() -> None:
    at = At(blocks=34, seconds=1e-4, seqs=1)
    at.serve(*(document(number) for number in range(10)))
    runs = sequence(list(range(5000, 5000 + 20 * SIZE)), tokens=40)
    at.plans.add(runs)
    at.step()
    waits = [document(number, latency_class=LatencyClass.BATCH) for number in range(2)]
    for one in waits:
        at.plans.add(one)
    at.step()
    at.step()
    held = at.plans.restores.held
    assert 4 <= len(held) <= 33 // 4
    while runs.output_tokens < 39:
        at.step()
        assert not at.plans.preemptions
    assert len(at.plans.restores.held) < len(held)


def test_what_a_preempted_sequence_held_is_kept_whatever_it_displaces_and_comes_back() -> None:
    at = At(blocks=20, seconds=1e-4, slots=24)
    at.serve(*(document(number, latency_class=LatencyClass.INTERACTIVE) for number in range(12)))
    assert len(at.plans.restores.tiers.levels[0].copies) == 24  # all worth more than a block of class batch
    slow = document(50, blocks=8, tokens=12, latency_class=LatencyClass.BATCH)
    at.plans.add(slow)
    at.step()
    at.plans.add(document(60, blocks=16, tokens=3, latency_class=LatencyClass.INTERACTIVE))
    at.step(0.3)  # now it is late enough to take the blocks of a lower class
    assert at.step().preempted == [slow]
    on_disk = [at.plans.restores.tiers.holds(key) for key in at.plans.tables.keys_of(slow.request)]
    assert sum(on_disk) >= 4
    while slow.output_tokens < 12:
        at.step()
    assert at.plans.restores.counts.done == 1 and at.plans.preemptions == 1
    assert at.plans.recomputed_tokens < 8 * SIZE


def test_a_deadline_that_only_spilled_kv_can_meet_is_admitted() -> None:
    at = At(blocks=20, seconds=1e-4)
    at.serve(*(document(number) for number in range(6)))
    deadline = at.now + at.plans.costs.prefill_seconds(2 * SIZE, 0, 400)
    admission = Admission(at.plans.limits, at.plans.costs, at.plans.restores.outlook)
    admission.update(at.plans)
    admission.admit(document(0, deadline=deadline).request, at.now, 0.0, 0)
    with pytest.raises(QueueFull):
        admission.admit(document(77, deadline=deadline).request, at.now, 0.0, 0)
    with pytest.raises(QueueFull):  # another tenant's
        admission.admit(document(0, deadline=deadline, scope="another").request, at.now, 0.0, 0)
