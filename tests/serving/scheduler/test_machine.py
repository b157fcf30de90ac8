"""Any order of arrivals, steps, overlaps, cancellations, revocations and adapter loads keeps queue, pool and adapters
consistent, and everything ends when it is let."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.core import LatencyClass, Sequence, Status
from serving.steps import StepPlan
from tests.serving.scheduler.fakes import FakeResidency, planner, sequence

DIGESTS = ("a", "b", "c")


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        blocks=st.integers(9, 30),
        budget=st.integers(4, 40),
        seqs=st.integers(1, 4),
        caching=st.booleans(),
        depth=st.integers(0, 1),
    )
    def start(self, blocks: int, budget: int, seqs: int, caching: bool, depth: int) -> None:
        self.now, self.depth = 0.0, depth
        self.residency = FakeResidency()
        self.plans = planner(self.residency, blocks=blocks, budget=budget, seqs=seqs, caching=caching)
        self.launched: list[StepPlan] = []
        self.finished: list[Sequence] = []

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        tokens=st.integers(1, 10),
        digest=st.sampled_from([None, *DIGESTS]),
        tenant=st.sampled_from("xyz"),
        latency_class=st.sampled_from(LatencyClass),
        wait=st.none() | st.floats(0.01, 20),
    )
    def arrive(
        self,
        prompt: list[int],
        tokens: int,
        digest: str | None,
        tenant: str,
        latency_class: LatencyClass,
        wait: float | None,
    ) -> None:
        deadline = None if wait is None else self.now + wait
        self.plans.add(
            sequence(
                prompt,
                digest=digest,
                tenant=tenant,
                scope=tenant,
                tokens=tokens,
                deadline=deadline,
                latency_class=latency_class,
                arrival=self.now,
            )
        )

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.3, 5.0, 40.0]))
    def step(self, seconds: float) -> None:
        self.now += seconds
        plan = self.plans.plan(self.now)
        for late in plan.expired:
            self.end(late)
        if plan.chunks:
            self.launched.append(plan)
        while len(self.launched) > (self.depth if plan.chunks else 0):
            self.commit()

    def commit(self) -> None:
        for chunk in self.launched.pop(0).chunks:
            samples, seq = chunk.samples, chunk.sequence
            if self.plans.commit(chunk, self.now) and samples:
                seq.tokens.append(7)
                if seq.output_tokens >= seq.request.max_tokens:
                    self.end(seq)

    def end(self, seq: Sequence) -> None:
        self.plans.finish(seq)
        self.finished.append(seq)

    @precondition(lambda self: self.plans.sequences())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.plans.sequences())))

    @rule(digest=st.sampled_from(DIGESTS))
    def load(self, digest: str) -> None:
        self.residency.ready.add(digest)

    @rule(digest=st.sampled_from(DIGESTS))
    def evict(self, digest: str) -> None:
        if not self.residency.pins.get(digest):
            self.residency.ready.discard(digest)

    @rule(digest=st.sampled_from(DIGESTS))
    def revoke(self, digest: str) -> None:
        while self.launched:
            self.commit()
        for seq in self.plans.sequences():
            if seq.digest == digest:
                self.end(seq)
        assert not self.residency.pins.get(digest)
        self.residency.ready.discard(digest)
        self.plans.drop_prefixes(digest)

    @invariant()
    def consistent(self) -> None:
        self.plans.check_integrity()
        pins = dict.fromkeys(self.residency.pins, 0)
        for seq in self.plans.running:
            pins[seq.digest] += 1
        assert pins == self.residency.pins
        assert all(seq.status is Status.FINISHED and not seq.blocks for seq in self.finished)

    def teardown(self) -> None:
        if not hasattr(self, "plans"):
            return
        self.residency.ready.update(DIGESTS)
        for _ in range(3000):
            if not self.plans.sequences():
                break
            self.step(0.01)
            self.consistent()
        assert not self.plans.sequences() and self.plans.pool.used == 0
        assert all(count == 0 for count in self.residency.pins.values())


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
