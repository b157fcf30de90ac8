"""Which waiting sequences have spilled KV restored, in what order, and when they stop waiting for it.

A sequence whose prefix lies on a lower level either has it restored or computes it again: whichever brings its first
token sooner, by the measured seconds of a load and by the cost model. Restores run while sequences wait for their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from serving.core import LatencyClass, Request, Sequence
from serving.kv.content import Content, Owners
from serving.kv.level import State, Worth
from serving.kv.tiers import Tiers
from serving.scheduler.cost_model import CostModel
from serving.scheduler.restore import Restore, RestoreCounts, patience_for
from serving.scheduler.slo import Targets
from serving.scheduler.tables import BlockTables

# The first so many sequences in line are looked at: their restores take longer than a step, not longer than a queue.
AHEAD = 8
# Restored blocks of waiting sequences take at most this share of the pool, so that those that run can finish.
POOL_SHARE = 0.25
# How much more a block of a better class is worth on a lower level.
_CLASS_WEIGHTS = {LatencyClass.INTERACTIVE: 4.0, LatencyClass.STANDARD: 2.0, LatencyClass.BATCH: 1.0}
# Tokens computed at once when evicted KV is computed again, in the estimate of what a block is worth.
_CHUNK = 256


class Restores:
    """Decides what leaves the pool for the levels of `tiers`, and what comes back. Engine thread only, but for
    `outlook`.

    rank: an adapter's
    chunk: the most prompt tokens of a step
    """

    def __init__(
        self,
        tiers: Tiers,
        tables: BlockTables,
        costs: CostModel,
        targets: Targets,
        rank: Callable[[str | None], int],
        chunk: int,
    ) -> None:
        self.tiers, self.counts = tiers, RestoreCounts()
        self._pool, self._tables, self._costs, self._targets = tables.pool, tables, costs, targets
        self._rank, self._chunk = rank, chunk
        self._restores: dict[Sequence, Restore] = {}
        # What preempted sequences held: it is kept whatever it displaces, for it is wanted again soon.
        self._preempted: dict[Sequence, frozenset[bytes]] = {}
        self._now = 0.0
        self._room = 0  # blocks of the pool that loads may still take in this step
        if tiers:
            self._pool.on_reclaim = self._reclaimed

    # -- the planner tells ------------------------------------------------------------------------------------------

    def plan(self, now: float, upcoming: Iterable[Sequence], running: list[Sequence]) -> None:
        """Take over what has ended, and begin restores.

        upcoming: waiting sequences, roughly in the order of the coming steps
        """
        if not self.tiers:
            return
        self._now = now
        self.tiers.poll(now)
        self._look_ahead(upcoming, running)
        self._advance_all(len(running))
        if self.tiers.poll(now):  # host memory lends its blocks at once
            self._advance_all(len(running))

    def delays(self, sequence: Sequence, now: float) -> bool:
        """Return whether a sequence that could take a seat now waits for its restore instead. One that finds no room
        in the pool does not: it is next, as others are, and its restore goes on meanwhile."""
        if not self.tiers:
            return False
        if sequence not in self._restores:
            self._decide(sequence, 0.0)
        if not self.restoring(sequence):
            return False
        restore = self._restores[sequence]
        if self._pool.blocks_for(len(sequence.tokens)) - len(restore.held) >= self._pool.available:
            return False
        if restore.turn_at is None:
            restore.turn_at = now
        if now - restore.turn_at > restore.patience:
            self._give_up(restore)
            return False
        return True

    def restoring(self, sequence: Sequence) -> bool:
        """Return whether the restore of a sequence is under way."""
        restore = self._restores.get(sequence)
        return restore is not None and not restore.ended

    def started(self, sequence: Sequence, now: float) -> None:
        """Note that a sequence has started: it holds the restored blocks itself, and they were of use."""
        if self.tiers:
            self.end(sequence)
            self.tiers.use(sequence.block_keys[: sequence.computed // self._pool.block_size], now)

    def preempted(self, sequence: Sequence) -> None:
        """Keep what a sequence holds for its return. Call it before its blocks are released."""
        if self.tiers:
            computed = sequence.computed // self._pool.block_size
            self._preempted[sequence] = frozenset(sequence.block_keys[:computed])

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence that starts or has finished."""
        self._preempted.pop(sequence, None)
        restore = self._restores.pop(sequence, None)
        if restore is not None:
            self._release(restore)

    def give_way(self, to: Sequence | None = None) -> bool:
        """Let the last restore in order give up its blocks, which `to` or a running sequence needs. Returns False if
        none holds any."""
        holding = [r for r in self._restores.values() if r.held and r.sequence is not to]
        if not holding:
            return False
        self._give_up(max(holding, key=self._urgency))
        return True

    def forget(self, owners: Owners) -> None:
        """Make every copy of what belongs to these owners unreadable."""
        self.tiers.forget(owners)

    # -- admission asks, from any thread ----------------------------------------------------------------------------

    def outlook(self, request: Request) -> tuple[int, float]:
        """Return how many tokens of a prompt need no computing, and the seconds until they are restored."""
        if not self.tiers or request.sampling.prompt_logprobs is not None:
            return 0, 0.0
        found, missing = 0, []
        for key in self._tables.keys_of(request):
            if self._pool.block_of(key) is None:
                if not self.tiers.holds(key):
                    break
                missing.append(key)
            found += 1
        return found * self._pool.block_size, self.tiers.seconds(missing)

    # -- what leaves the pool ---------------------------------------------------------------------------------------

    def _reclaimed(self, block: int, content: Content) -> None:
        """Spill a cached block that the pool gives to another."""
        seconds = self._costs.prefill_seconds(_CHUNK, self._rank(content.digest), _CHUNK) / _CHUNK
        always = any(content.key in keys for keys in self._preempted.values())
        # What a preempted sequence held is as dear as the best class: its blocks shall not displace one another.
        weight = _CLASS_WEIGHTS[LatencyClass.INTERACTIVE if always else content.latency_class]
        self.tiers.spill(block, content, Worth(seconds * self._pool.block_size * weight, always), self._now)

    # -- what comes back --------------------------------------------------------------------------------------------

    def _look_ahead(self, upcoming: Iterable[Sequence], running: list[Sequence]) -> None:
        """Decide about the next sequences in line, whose turn comes after the prompts that were begun."""
        turn = self._costs.prefill_seconds(sum(s.pending for s in running if s.pending > 1), 0, self._chunk)
        for sequence in islice(upcoming, AHEAD):
            if sequence not in self._restores:
                self._decide(sequence, turn)
            turn += self._compute_seconds(sequence, 0, len(sequence.tokens))

    def _decide(self, sequence: Sequence, turn: float) -> None:
        """Begin the restore of a sequence, if that brings its first token sooner."""
        found = end = len(self._tables.prefix(sequence))
        size = self._pool.block_size
        keys = sequence.block_keys[: sequence.reusable // size]
        missing = []
        while end < len(keys):
            if self._pool.block_of(keys[end]) is None:
                if not self.tiers.holds(keys[end]):
                    break
                missing.append(keys[end])
            end += 1
        if not missing or not self._budget:
            return
        recompute = self._compute_seconds(sequence, found * size, end * size)
        rest = self._compute_seconds(sequence, end * size, len(sequence.tokens))
        slack = self._targets.slack(sequence, self._now) - rest
        patience = patience_for(turn, self.tiers.seconds(missing), recompute, slack)
        if patience is not None:
            self.counts.begun += 1
            self._restores[sequence] = Restore(sequence, keys[:end], patience)

    def _advance_all(self, running: int) -> None:
        """Advance the restores in order, within their share of the pool and with a block to spare for each running
        sequence: what is loaded and finds no room would be loaded for nothing."""
        budget = self._budget
        self._room = self._pool.available - running - self.tiers.loading
        for restore in sorted(self._open(), key=self._urgency):
            budget -= self._advance(restore, budget)

    def _advance(self, restore: Restore, budget: int) -> int:
        """Hold what is in the pool and begin loads, of at most `budget` blocks. Returns how many it takes of those."""
        wanted, held = restore.keys[:budget], restore.held
        if len(held) > len(wanted):  # a more urgent one came
            self._pool.release(held[len(wanted) :])
            del held[len(wanted) :]
        if restore.ended:
            return len(held)
        while len(held) < len(wanted) and (block := self._pool.block_of(wanted[len(held)])) is not None:
            self._pool.hold(block)
            held.append(block)
        for place in range(len(held), len(wanted)):
            if self._pool.block_of(wanted[place]) is not None:
                continue
            state = self.tiers.state(wanted[place])
            if state is None:  # lost, and what comes behind it is of no use
                self.counts.given_up += 1
                restore.ended = True
                return len(held)
            if state is State.SPILLED:
                if self._room <= 0 or not self.tiers.restore(wanted[place]):
                    break
                self._room -= 1
        # The first in order does with what it may hold; others wait until those before them have started.
        if len(held) == (len(wanted) if budget == self._budget else len(restore.keys)):
            restore.ended = True
            self.counts.done += 1
        return len(wanted)

    def _give_up(self, restore: Restore) -> None:
        self._release(restore)
        self.counts.given_up += not restore.ended
        restore.ended = True

    def _release(self, restore: Restore) -> None:
        self._pool.release(restore.held)
        restore.held = []

    def _open(self) -> Iterator[Restore]:
        return (restore for restore in self._restores.values() if not restore.ended or restore.held)

    def _urgency(self, restore: Restore) -> tuple[int, float, float]:
        sequence = restore.sequence
        slack = self._targets.slack(sequence, self._now)
        return self._targets.rank(sequence, self._now), slack, sequence.arrival

    def _compute_seconds(self, sequence: Sequence, start: int, end: int) -> float:
        """Return the seconds to compute tokens [start, end) of a sequence alone."""
        rank = self._rank(sequence.digest)
        whole, before = (self._costs.prefill_seconds(tokens, rank, self._chunk) for tokens in (end, start))
        return whole - before

    # -- state ------------------------------------------------------------------------------------------------------

    @property
    def _budget(self) -> int:
        """How many blocks restores may hold."""
        return int(self._pool.limit * POOL_SHARE)

    def held_for(self, sequence: Sequence) -> int:
        """Return how many blocks are held for a waiting sequence."""
        restore = self._restores.get(sequence)
        return 0 if restore is None else len(restore.held)

    @property
    def held(self) -> list[int]:
        """The blocks held for waiting sequences, once for each."""
        return [block for restore in self._restores.values() for block in restore.held]

    def check_patience(self, now: float) -> None:
        """Raise AssertionError when a sequence whose turn has come still waits although its patience is over."""
        for restore in self._restores.values():
            assert restore.ended or restore.turn_at is None or now - restore.turn_at <= restore.patience

    def check_integrity(self, waiting: Iterable[Sequence]) -> None:
        """Raise AssertionError when something is held for a sequence that does not wait, or the levels disagree."""
        assert set(self._restores) <= set(waiting) and set(self._preempted) <= set(waiting)
        assert len(self.held) <= self._budget or self._pool.limit < self._pool.num_blocks - 1
        self.tiers.check_integrity()
