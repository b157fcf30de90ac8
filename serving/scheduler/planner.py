"""What the next step computes: every running decode first, then prefill chunks, then newcomers, up to a token budget.

KV is handed out here and nowhere else. When it runs out, the sequence admitted last gives its blocks back and is
computed again later (its tokens and its random state stay, so its output does not change).
"""

from __future__ import annotations

from dataclasses import dataclass

from serving.core import Chunk, Residency, Sequence, Status, StepPlan
from serving.kv.pool import BlockPool
from serving.kv.prefix import block_key, root_key
from serving.scheduler.queue import FairQueue


@dataclass(frozen=True, slots=True)
class Limits:
    """max_batched_tokens bounds one step's rows; max_num_seqs the running sequences; max_queue the waiting ones."""

    max_batched_tokens: int
    max_num_seqs: int
    max_queue: int


class Planner:
    """Owns the waiting queue, the running list (oldest admission first) and the block pool."""

    def __init__(self, limits: Limits, pool: BlockPool, residency: Residency, fingerprint: str) -> None:
        self.limits, self.pool, self.residency, self.fingerprint = limits, pool, residency, fingerprint
        self.waiting, self.running = FairQueue(), list[Sequence]()
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        self.waiting.push(sequence)

    def sequences(self) -> list[Sequence]:
        """Everything in flight."""
        return [*self.running, *self.waiting]

    def finish(self, sequence: Sequence) -> None:
        """Takes a sequence out wherever it is and frees what it holds. Its published blocks stay cached."""
        if sequence.status is Status.RUNNING:
            self._stop(sequence)
        elif sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        sequence.status = Status.FINISHED

    def plan(self, now: float) -> StepPlan:
        """Decides one step. Sequences past their deadline are reported in `expired` and left to the caller to
        finish."""
        plan = StepPlan(
            expired=[s for s in self.sequences() if s.request.deadline is not None and s.request.deadline <= now]
        )
        late = set(map(id, plan.expired))
        budget = self._plan_decodes(plan, late)
        budget = self._plan_prefills(plan, late, budget)
        self._admit(plan, late, budget)
        return plan

    def commit(self, chunk: Chunk) -> None:
        """Records that a chunk's KV is written and publishes the blocks it filled. Call before appending a sampled
        token."""
        sequence = chunk.sequence
        sequence.computed = chunk.start + chunk.count
        if not self.pool.caching:
            return
        size = self.pool.block_size
        for index in range(chunk.start // size, sequence.computed // size):
            self._extend_keys(sequence, index + 1)
            self.pool.publish(sequence.blocks[index], sequence.block_keys[index], sequence.digest)

    def drop_prefixes(self, digest: str) -> list[int]:
        """Forgets all KV of a revoked adapter; returns the block ids to zero."""
        return self.pool.drop(digest)

    def _plan_decodes(self, plan: StepPlan, late: set[int]) -> int:
        budget = self.limits.max_batched_tokens
        for sequence in list(self.running):
            if sequence.status is not Status.RUNNING or sequence.pending != 1 or id(sequence) in late or budget == 0:
                continue
            if self._grow(sequence, plan):
                plan.chunks.append(Chunk(sequence, sequence.computed, 1))
                budget -= 1
        return budget

    def _grow(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Makes room for the pending token; False if `sequence` itself had to give way."""
        missing = self.pool.blocks_for(len(sequence.tokens)) - len(sequence.blocks)
        while missing > self.pool.available:
            victim = self.running[-1]
            self._preempt(victim, plan)
            if victim is sequence:
                return False
        fresh = self.pool.allocate(missing)
        sequence.blocks += fresh
        plan.fresh_blocks += fresh
        return True

    def _preempt(self, victim: Sequence, plan: StepPlan) -> None:
        self._stop(victim)
        victim.status = Status.WAITING
        victim.computed = 0
        self.waiting.push(victim, front=True)
        plan.preempted.append(victim)
        self.preemptions += 1

    def _stop(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        self.residency.unpin(sequence.digest)

    def _plan_prefills(self, plan: StepPlan, late: set[int], budget: int) -> int:
        for sequence in self.running:
            if sequence.pending > 1 and id(sequence) not in late and budget > 0:
                count = min(sequence.pending, budget)
                plan.chunks.append(Chunk(sequence, sequence.computed, count))
                budget -= count
        return budget

    def _admit(self, plan: StepPlan, late: set[int], budget: int) -> None:
        def eligible(sequence: Sequence) -> bool:
            return id(sequence) not in late and self.residency.is_ready(sequence.digest)

        # A step that had to preempt admits nobody: the newcomer would take the very blocks that were just given back.
        while budget > 0 and len(self.running) < self.limits.max_num_seqs and not plan.preempted:
            sequence = self.waiting.next(eligible)
            if sequence is None or not self._start(sequence, plan):
                break  # No room for the one whose turn it is: nobody overtakes it, so long prompts do not starve.
            count = min(sequence.pending, budget)
            plan.chunks.append(Chunk(sequence, sequence.computed, count))
            budget -= count
        plan.wanted = list(
            dict.fromkeys(
                s.digest
                for s in self.waiting
                if s.digest is not None and id(s) not in late and not self.residency.is_ready(s.digest)
            )
        )

    def _start(self, sequence: Sequence, plan: StepPlan) -> bool:
        size, total = self.pool.block_size, len(sequence.tokens)
        known: list[int] = []
        if self.pool.caching:
            # At least one token is always computed: its logits are what the next token is drawn from.
            self._extend_keys(sequence, (total - 1) // size)
            known = self.pool.match(sequence.block_keys[: (total - 1) // size])
        missing = self.pool.blocks_for(total) - len(known)
        # One spare block per running sequence would be safest; one in all keeps the pool full and preemption rare.
        if missing + (1 if self.running else 0) > self.pool.available - self.pool.idle(known):
            return False
        self.pool.take(known)
        fresh = self.pool.allocate(missing)
        sequence.blocks = known + fresh
        plan.fresh_blocks += fresh
        sequence.computed = len(known) * size
        if not sequence.admitted_once:
            sequence.cached_tokens, sequence.admitted_once = sequence.computed, True
        self.waiting.take(sequence)
        sequence.status = Status.RUNNING
        self.running.append(sequence)
        self.residency.pin(sequence.digest)
        return True

    def _extend_keys(self, sequence: Sequence, count: int) -> None:
        keys, size = sequence.block_keys, self.pool.block_size
        parent = keys[-1] if keys else root_key(sequence.request.cache_scope, sequence.digest, self.fingerprint)
        for index in range(len(keys), count):
            parent = block_key(parent, sequence.tokens[index * size : (index + 1) * size])
            keys.append(parent)

    def check_integrity(self) -> None:
        """Raises AssertionError when sequences and pool disagree about who holds what."""
        self.pool.check_integrity()
        users: dict[int, int] = {}
        for sequence in self.running:
            assert sequence.status is Status.RUNNING and 0 <= sequence.computed <= len(sequence.tokens)
            assert len(sequence.blocks) * self.pool.block_size >= sequence.computed
            for block in sequence.blocks:
                users[block] = users.get(block, 0) + 1
        assert all(s.status is Status.WAITING and not s.blocks for s in self.waiting)
        assert len(users) == self.pool.used
