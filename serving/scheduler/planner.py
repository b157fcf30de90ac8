"""The plan of the next step.

Order: expired sequences are removed → decodes (those at risk of missing their target first, where not all fit) →
prefills until the predicted step time reaches the tightest slack of the running decodes → drafts that pay. When KV or
seats run out, the sequence with the largest slack is preempted and recomputed later, mostly from the prefix cache. It
keeps its tokens and its random state, so its output does not change.
"""

from __future__ import annotations

import itertools

from serving.core import LatencyClass, Sequence, Status
from serving.kv.content import of_adapter, of_scope
from serving.kv.pool import BlockPool
from serving.kv.tiers import Tiers
from serving.scheduler.accounts import Accounts
from serving.scheduler.cost_model import CostModel
from serving.scheduler.counts import ClassCounts
from serving.scheduler.drafts import DraftPlanner
from serving.scheduler.exchange import Exchange
from serving.scheduler.fairness import Prices
from serving.scheduler.limits import Limits
from serving.scheduler.open_step import OpenStep, can_decode
from serving.scheduler.preemption import victim_order, victims_for
from serving.scheduler.queues import Deadlines, WaitQueue
from serving.scheduler.restores import Restores
from serving.scheduler.slo import Targets
from serving.scheduler.tables import BlockTables
from serving.speculation import Drafter
from serving.steps import Chunk, Residency, StepPlan, StepShape

# While a class has waited too long, every fourth sequence that starts is one of its own.
_TURNS_OF_OTHERS = 3


class Planner:
    """Owns the waiting queue, the running list (oldest admission first) and the block pool. `plan` is a function of its
    state and `now`; `add`, `commit` and `finish` change the state. Times are seconds on one monotonic clock."""

    def __init__(
        self,
        limits: Limits,
        pool: BlockPool,
        residency: Residency,
        fingerprint: str,
        *,
        targets: Targets | None = None,
        prices: Prices | None = None,
        costs: CostModel | None = None,
        drafter: Drafter | None = None,
        max_draft_rows: int = 0,
        drafts_in_turn: bool = True,
        tiers: Tiers | None = None,
    ) -> None:
        self.limits, self.pool, self.residency = limits, pool, residency
        self.targets, self.costs = targets or Targets(), costs or CostModel()
        self.accounts = Accounts(prices or Prices(), residency)
        self.tables = BlockTables(pool, fingerprint)
        drafter = drafter or Drafter()
        self.drafts = DraftPlanner(drafter, self.tables, pool, self.costs, max_draft_rows, in_turn=drafts_in_turn)
        self.restores = Restores(
            tiers or Tiers(pool),
            self.tables,
            self.costs,
            self.targets,
            self.accounts.rank,
            limits.max_batched_tokens,
        )
        self.exchange = Exchange(self.tables, self.restores.tiers)
        self.waiting, self.running = WaitQueue(self.targets), list[Sequence]()
        self.counts = {latency_class: ClassCounts() for latency_class in LatencyClass}
        self.preemptions = 0
        # Costs of too little KV: recomputed tokens; seconds the next sequence had a seat and no blocks.
        self.recomputed_tokens, self.kv_wait_seconds = 0, 0.0
        self._planned_at = 0.0
        self._deadlines = Deadlines()
        self._blocked: Sequence | None = None
        self._turns_of_others = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self._deadlines.add(sequence)
        self._deadlines.forget_finished(len(self.waiting) + len(self.running))
        self.counts[sequence.request.latency_class].arrived += 1
        self._wait(sequence)

    @property
    def seats(self) -> int:
        """Return how many of the running sequences' rows a step has room for: a group takes one for each member."""
        return sum(sequence.width for sequence in self.running)

    def sequences(self) -> list[Sequence]:
        """Return all sequences in flight."""
        return [*self.running, *self.waiting]

    def finish(self, sequence: Sequence) -> None:
        """Remove a running or waiting sequence and free what it holds. Its published blocks stay cached."""
        self.restores.end(sequence)
        if sequence.status is Status.RUNNING:
            self._stop(sequence)
        elif sequence.status is Status.WAITING:
            self._unwait(sequence)
        for member in sequence.members:
            member.status = Status.FINISHED

    def plan(self, now: float) -> StepPlan:
        """Decide one step. `expired` lists sequences past their deadline, which the caller finishes."""
        plan = StepPlan(expired=self._deadlines.passed(now))
        step = OpenStep(plan, now, self.limits, self.costs, self.pool.block_size, set(plan.expired))
        if self._blocked is not None and self.seats < self.limits.max_num_seqs:
            self.kv_wait_seconds += now - self._planned_at
        self._planned_at = now
        self.accounts.settle(self.running, now)
        self.waiting.age(now)
        self.restores.plan(now, self.waiting.preview(self._tenant_key), self.running)
        self._preempt_for_blocked(step)
        self._plan_decodes(step)
        self._plan_prefills(step)
        self.drafts.extend(step)
        plan.wanted = self._wanted(step)
        plan.predicted_seconds = self.costs.predict(step.shape)
        return plan

    def commit(self, chunk: Chunk, now: float, accepted: int = 0) -> bool:
        """Record a computed chunk before its tokens are appended. Returns False if its sequence has ended meanwhile.

        accepted: how many tokens of the chunk's draft the model chose itself
        """
        sequence = chunk.sequence
        if sequence.status is Status.FINISHED:
            return False
        if chunk.draft:
            self.drafts.verified(chunk, accepted, now)
            chunk = chunk.accepted(accepted)
            self.accounts.charge(chunk)  # an accepted token is a token like any other
            sequence.planned = chunk.end
        if chunk.samples:
            sequence.in_flight -= 1
            if sequence.first_token_at is None:
                sequence.first_token_at = now
                self.counts[sequence.request.latency_class].first_token(sequence, now)
            sequence.last_token_at = now
        if chunk.end <= sequence.planned:  # else it gave its blocks back meanwhile
            self.tables.commit(chunk)
        return True

    def drop_prefixes(self, digest: str | None) -> list[int]:
        """Forget all KV and all answers of a revoked adapter; returns the block ids to zero."""
        self.restores.forget(of_adapter(digest))
        self.exchange.forget(of_adapter(digest))
        self.drafts.drafter.forget((digest,))
        return self.pool.drop(digest)

    def drop_scope(self, scope: str) -> list[int]:
        """Forget all KV and all answers of a scope; returns the block ids to zero."""
        self.restores.forget(of_scope(scope))
        self.exchange.forget(of_scope(scope))
        self.drafts.drafter.books.forget_scope(scope)
        return self.pool.drop_scope(scope)

    # -- decodes ----------------------------------------------------------------------------------------------------

    def _plan_decodes(self, step: OpenStep) -> None:
        decodes = [s for s in self.running if s not in step.skipped and s.pending == 1 and can_decode(s)]
        decodes = _fitting(self._in_time(decodes, step), step.rows)
        if sum(map(self.tables.missing, decodes)) > self.pool.available:
            decodes.sort(key=lambda s: victim_order(s, self.targets, step.now))
        for sequence in decodes:
            if self._grow(sequence, step):
                self._add_chunk(sequence, 1, step)

    def _in_time(self, decodes: list[Sequence], step: OpenStep) -> list[Sequence]:
        """Set the step's time; where the decodes exceed it, leave out those of lower classes that can wait."""
        if not decodes:
            return decodes
        shape = StepShape()
        for sequence in decodes:
            for member in sequence.members:
                shape.add_decode(member.length, member.digest, self.accounts.rank(member.digest))
        whole = self.costs.predict(shape)
        slacks = {sequence: self.targets.slack(sequence, step.now) for sequence in decodes}
        step.seconds = min(slacks.values())
        if whole <= step.seconds:
            return decodes
        rank = min(s.request.latency_class.value for s in decodes)
        return [s for s in decodes if s.request.latency_class.value <= rank or slacks[s] < 2 * whole]

    def _grow(self, sequence: Sequence, step: OpenStep) -> bool:
        """Make room for the pending token. Returns False if `sequence` itself had to be preempted."""
        if sequence.status is not Status.RUNNING:
            return False
        if self.tables.missing(sequence) <= 0:  # 15 of 16 decodes
            return True
        while self.tables.missing(sequence) > self.pool.available:
            if self.restores.give_way():
                continue
            candidates = (s for s in reversed(self.running) if s not in step.scheduled)
            victim = max(candidates, key=lambda s: victim_order(s, self.targets, step.now))
            self._preempt(victim, step)
            step.preempted_for_kv = True
            if victim is sequence:
                return False
        if sequence.group is not None:
            step.plan.copies += self.tables.part(sequence)
        step.plan.fresh_blocks += self.tables.grow(sequence)
        return True

    # -- prefills ---------------------------------------------------------------------------------------------------

    def _plan_prefills(self, step: OpenStep) -> None:
        begun = [s for s in self.running if s not in step.skipped and s.pending > 1]
        self._blocked = None
        # A step that had to preempt starts no new sequence, which would take the blocks that were just freed.
        admitting = not step.preempted_for_kv
        while step.rows > 0:
            running = min(begun, key=lambda s: self._turn(s, step.now), default=None)
            waiting = self._next(step) if admitting else None
            if waiting is not None and (running is None or self._goes_before(waiting, running, step.now)):
                if not step.has_time_for(waiting, self.accounts.rank(waiting.digest)):
                    return
                if not self._start(waiting, step):
                    # No other sequence overtakes it, so long prompts do not starve.
                    self._blocked, admitting = waiting, False
                    continue
                sequence = waiting
            elif running is not None:
                begun.remove(running)
                sequence = running
            else:
                return
            count = step.prefill_tokens(sequence, self.accounts.rank(sequence.digest))
            if count == 0:
                return
            self._add_chunk(sequence, count, step)

    def _turn(self, sequence: Sequence, now: float) -> tuple[int, bool, float, float]:
        """Return the sort key of prefills: class, interrupted streams, the tenant's counter, the due time."""
        rank = self.targets.rank(sequence, now)
        counter = self.accounts.of(sequence.request.tenant)
        return rank, sequence.output_tokens == 0, counter, self.targets.due(sequence)

    def _goes_before(self, waiting: Sequence, running: Sequence, now: float) -> bool:
        """Return whether `waiting` starts before the prompt of `running` is continued."""
        if self._promoted == waiting.request.latency_class.value:
            return True
        _, *turn = self._turn(waiting, now)
        return (waiting.request.latency_class.value, *turn) < self._turn(running, now)

    @property
    def _promoted(self) -> int | None:
        """The class whose turn it is because it waited too long."""
        return self.waiting.starving if self._turns_of_others >= _TURNS_OF_OTHERS else None

    def _next(self, step: OpenStep) -> Sequence | None:
        """Return the first sequence in turn that can start; those that cannot block no other."""
        for sequence in self.waiting.in_turn(self._tenant_key, self._promoted):
            if (
                sequence not in step.skipped
                and self.residency.is_ready(sequence.digest)
                and not sequence.in_flight
                and not self.tables.is_being_computed(sequence)
                and not (len(self.running) < self.limits.max_num_seqs and self.restores.delays(sequence, step.now))
            ):
                return sequence
        return None

    def _tenant_key(self, tenant: str, first: Sequence) -> float:
        return self.accounts.turn_key(tenant, first, self.pool.block_size, self.limits.quantum)

    def _start(self, sequence: Sequence, step: OpenStep) -> bool:
        if self.seats + sequence.width > self.limits.max_num_seqs:
            return False
        # One spare block per running sequence would be safest; a single one keeps the pool full and preemption rare. A
        # group's first token parts it into members that each need one.
        spare = (1 if self.running else 0) + sequence.width - 1
        while (start := self.tables.start(sequence, spare)) is None:
            if not self.restores.give_way(to=sequence):
                return False
        self.restores.started(sequence, step.now)
        step.plan.fresh_blocks += start.fresh
        if start.copy is not None:
            step.plan.copies.append(start.copy)
        own_turn = self.waiting.starving in (None, sequence.request.latency_class.value)
        self._turns_of_others = 0 if own_turn else self._turns_of_others + 1
        self._unwait(sequence)
        sequence.status = Status.RUNNING
        self.running.append(sequence)
        self.residency.pin(sequence.digest)
        self.accounts.begin_turn(sequence, self.pool.block_size)
        if sequence.admitted_at is None:
            credited = sequence.request.cached_as
            sequence.cached_tokens = sequence.computed if credited is None else credited
            sequence.admitted_at = step.now
            self.counts[sequence.request.latency_class].admitted(sequence, step.now)
        return True

    # -- preemption ---------------------------------------------------------------------------------------------------

    def _preempt_for_blocked(self, step: OpenStep) -> None:
        """Preempt lower classes for a sequence that is late and found no room in the last step."""
        sequence = self._blocked
        if sequence is None or sequence not in self.waiting or not self.residency.is_ready(sequence.digest):
            return
        seats = self.seats + sequence.width - self.limits.max_num_seqs
        held = self.pool.available + self.restores.held_for(sequence)
        blocks = self.pool.blocks_for(sequence.length) + sequence.width - held
        for victim in victims_for(sequence, self.running, self.targets, step.now, seats, blocks):
            self._preempt(victim, step)

    def _preempt(self, victim: Sequence, step: OpenStep) -> None:
        self.restores.preempted(victim)
        self._stop(victim)
        victim.status = Status.WAITING
        victim.preemptions += 1
        self._wait(victim)
        if victim.group is not None:
            victim.group.restart()
        step.plan.preempted.append(victim)
        self.preemptions += 1
        self.counts[victim.request.latency_class].preempted += 1

    def _stop(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        for member in sequence.members:
            self.tables.release(member)
        self.residency.unpin(sequence.digest)

    def _wait(self, sequence: Sequence) -> None:
        self.waiting.push(sequence)
        self.accounts.join(sequence)

    def _unwait(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        if not self.waiting.waiting_of(sequence.request.tenant):
            self.accounts.leave(sequence.request.tenant)

    def _add_chunk(self, sequence: Sequence, count: int, step: OpenStep) -> None:
        for member in sequence.members:
            self._add_member(member, count, step)

    def _add_member(self, sequence: Sequence, count: int, step: OpenStep) -> None:
        chunk = Chunk(sequence, sequence.planned, count)
        self.recomputed_tokens += max(0, min(chunk.end, sequence.charged) - chunk.start)
        step.add(chunk, self.accounts.charge(chunk))
        sequence.planned = chunk.end
        self.tables.launch(chunk)
        if chunk.samples:
            sequence.in_flight += 1

    def _wanted(self, step: OpenStep) -> list[str]:
        """Return the adapters that the next sequences wait for. Adapters of later ones would evict them."""
        wanted: dict[str, None] = {}
        if not self.waiting:
            return []
        for sequence in itertools.islice(self.waiting.preview(self._tenant_key), self.limits.max_num_seqs):
            digest = sequence.digest
            if digest is not None and sequence not in step.skipped and not self.residency.is_ready(digest):
                self.accounts.expect_load(digest, sequence.request.tenant)
                wanted[digest] = None
        return list(wanted)

    def check_integrity(self) -> None:
        """Raise AssertionError when sequences, queue and pool disagree."""
        members = [member for sequence in self.running for member in sequence.members]
        self.tables.check_integrity(members, self.restores.held)
        self.restores.check_integrity(self.waiting)
        self.waiting.check_integrity()
        assert self.seats <= self.limits.max_num_seqs
        for sequence in self.running:
            assert sequence.status is Status.RUNNING and 0 <= sequence.in_flight <= 1
            assert sequence not in self.waiting
        assert all(not s.blocks and s.computed == s.planned == 0 for s in self.waiting)


def _fitting(decodes: list[Sequence], rows: int) -> list[Sequence]:
    """Return the first of `decodes` that `rows` rows hold; a group is computed as a whole."""
    if sum(sequence.width for sequence in decodes) <= rows:
        return decodes
    fitting = []
    for sequence in decodes:
        rows -= sequence.width
        if rows < 0:
            break
        fitting.append(sequence)
    return fitting
