"""Fair shares among tenants: weighted virtual token counters (Sheng et al., arXiv 2401.00588).

Every tenant has a counter of the service it got, divided by its weight; the tenant with the smallest counter goes
first. The counters of two tenants that both have work waiting then never differ by more than twice what fits into one
batch.
"""

from __future__ import annotations

from dataclasses import dataclass

_KEPT = 1024


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of service, in units of one prompt token computed on the bare base model.

    decode: one output token (it reads all weights; a prompt token shares that reading with its neighbours)
    rank: added to a token's price for each rank of its adapter
    block_second: one KV block held for a second
    adapter_mib: one MiB of an adapter moved into memory
    """

    prefill: float = 1.0
    decode: float = 2.0
    rank: float = 1 / 256
    block_second: float = 0.1
    adapter_mib: float = 1.0

    def tokens(self, prefill: int, decode: int, rank: int) -> float:
        return (self.prefill * prefill + self.decode * decode) * (1.0 + self.rank * rank)

    def bound(self, longest_prompt: int, kv_tokens: int, rank: int) -> float:
        """Return the paper's U: the bound on the difference of two backlogged tenants' counters, at weight 1 and
        without charges for pages and loads.

        kv_tokens: tokens that the KV cache holds, which bound the output in progress at once
        """
        return max(self.tokens(longest_prompt, 0, rank), self.tokens(0, kv_tokens, rank))


class VirtualCounters:
    """One counter per tenant. A tenant is backlogged while it has sequences waiting."""

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._backlogged: dict[str, None] = {}
        self._backlogged_weight = 0.0
        self._kept = _KEPT
        self.virtual_time = 0.0

    def of(self, tenant: str) -> float:
        return self._counters.get(tenant, self.virtual_time)

    def join(self, tenant: str, weight: float) -> None:
        """Note that a tenant has work waiting again. It gets no credit for the service that it did not use meanwhile.

        Its counter is raised to the smallest one of the backlogged tenants, and further to the virtual time. Otherwise
        an endless stream of new tenants, each starting at the smallest counter, would keep that counter low for ever
        and starve all tenants above it.
        """
        if tenant in self._backlogged:
            self._reweigh(tenant, weight)
            return
        if self._backlogged:
            counters = [self._counters[other] for other in self._backlogged]
            self.virtual_time = min(max(self.virtual_time, min(counters)), max(counters))
        self._counters[tenant] = max(self._counters.get(tenant, 0.0), self.virtual_time)
        self._weights[tenant] = weight
        self._backlogged[tenant] = None
        self._backlogged_weight += weight

    def leave(self, tenant: str) -> None:
        """Note that the tenant has no work waiting any more."""
        if tenant not in self._backlogged:
            return
        del self._backlogged[tenant]
        self._backlogged_weight -= self._weights[tenant]
        if not self._backlogged:
            # Service without competition is not counted: the next tenant starts at the counter of the last one served.
            self._backlogged_weight = 0.0
            self.virtual_time = max(self.virtual_time, self._counters[tenant])
        if len(self._counters) > self._kept:
            self._forget()

    def charge(self, tenant: str, cost: float) -> None:
        """Charge service worth `cost`."""
        self._counters[tenant] = self.of(tenant) + cost / self._weights.setdefault(tenant, 1.0)
        if self._backlogged:
            self.virtual_time += cost / self._backlogged_weight

    def gap(self) -> float:
        """Return the difference between the largest and the smallest counter of backlogged tenants."""
        counters = [self._counters[tenant] for tenant in self._backlogged]
        return max(counters) - min(counters) if counters else 0.0

    def _reweigh(self, tenant: str, weight: float) -> None:
        self._backlogged_weight += weight - self._weights[tenant]
        self._weights[tenant] = weight

    def _forget(self) -> None:
        """Drop tenants without waiting work that would start at the virtual time anyway."""
        for tenant in [t for t, counter in self._counters.items() if counter <= self.virtual_time]:
            if tenant not in self._backlogged:
                del self._counters[tenant], self._weights[tenant]
        self._kept = max(_KEPT, 2 * len(self._counters))
