"""The charges of each tenant (computed tokens by rank, KV held, adapters moved), and whose turn it is."""

from __future__ import annotations

from serving.core import Sequence
from serving.scheduler.fairness import Prices, VirtualCounters
from serving.steps import Chunk, Residency

# KV held while nothing was planned for longer than this (an idle engine) is not charged.
_LONGEST_INTERVAL = 1.0


class Accounts:
    """Charges service to the tenants' `VirtualCounters`."""

    def __init__(self, prices: Prices, residency: Residency) -> None:
        self._prices, self._residency = prices, residency
        self.counters = VirtualCounters()
        self._settled_at: float | None = None
        self._loads: dict[str, str] = {}
        # Ranks of the step in planning: one is asked for three times per row, and is a sum over the parts of a blend.
        self._ranks: dict[str, int] = {}
        self._turn: tuple[str, tuple[str | None, str | None, tuple[int, ...]], float] | None = None

    def of(self, tenant: str) -> float:
        return self.counters.of(tenant)

    def join(self, sequence: Sequence) -> None:
        self.counters.join(sequence.request.tenant, sequence.request.weight)

    def leave(self, tenant: str) -> None:
        self.counters.leave(tenant)

    def rank(self, digest: str | None) -> int:
        if digest is None:
            return 0
        rank = self._ranks.get(digest)
        if rank is None:
            rank = self._ranks[digest] = self._residency.cost(digest).rank
        return rank

    def settle(self, running: list[Sequence], now: float) -> None:
        """Begin a step: charge for KV held since the last one and for adapters that have arrived."""
        self._ranks.clear()
        last, self._settled_at = self._settled_at, now
        if last is not None and running and now > last:
            price = min(now - last, _LONGEST_INTERVAL) * self._prices.block_second
            held: dict[str, int] = {}
            for sequence in running:
                tenant = sequence.request.tenant
                held[tenant] = held.get(tenant, 0) + sequence.held_blocks
            for tenant, blocks in held.items():
                self.counters.charge(tenant, blocks * price)
        for digest in [d for d in self._loads if self._residency.is_ready(d)]:
            mib = self._residency.cost(digest).bytes / (1 << 20)
            self.counters.charge(self._loads.pop(digest), mib * self._prices.adapter_mib)

    def expect_load(self, digest: str, tenant: str) -> None:
        """Note a load: the tenant whose request asked for it first pays once the adapter has arrived."""
        self._loads.setdefault(digest, tenant)
        if len(self._loads) > 4096:  # loads that failed are never settled
            del self._loads[next(iter(self._loads))]

    def charge(self, chunk: Chunk) -> int:
        """Charge a planned chunk; tokens recomputed after a preemption are free. Returns the adapter's rank."""
        sequence = chunk.sequence
        rank = self.rank(sequence.digest)
        start = max(chunk.start, sequence.charged)
        if chunk.end > start:
            prompt = max(0, min(chunk.end, sequence.prompt_tokens) - start)
            self.counters.charge(sequence.request.tenant, self._prices.tokens(prompt, chunk.end - start - prompt, rank))
            sequence.charged = chunk.end
        return rank

    def begin_turn(self, sequence: Sequence, block_size: int) -> None:
        """Begin a turn with `sequence`: its tenant's requests with the same first block may follow for a quantum."""
        tenant, beginning = sequence.request.tenant, _beginning(sequence, block_size)
        if self._turn is None or self._turn[:2] != (tenant, beginning):
            self._turn = (tenant, beginning, self.of(tenant))

    def turn_key(self, tenant: str, first: Sequence, block_size: int, quantum: float) -> float:
        """Return the tenant's counter, or less while its turn lasts and its next request has the same first block."""
        counter = self.of(tenant)
        if self._turn is not None and self._turn[0] == tenant:
            _, beginning, began = self._turn
            if counter - began < quantum and _beginning(first, block_size) == beginning:
                return counter - quantum
        return counter


def _beginning(sequence: Sequence, block_size: int) -> tuple[str | None, str | None, tuple[int, ...]]:
    """Return what two requests must have in common to share KV: scope, adapter, the first block."""
    request = sequence.request
    scope = None if request.shared_tokens >= block_size else request.cache_scope
    return scope, request.adapter.digest, request.prompt_token_ids[:block_size]
