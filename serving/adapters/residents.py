"""The last memory level: adapters that have pages and a slot, their pins and their eviction. Engine thread only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import torch

from lora_kernels import AdapterPool
from serving.adapter_stats import AdapterCounters
from serving.adapters.state import Entry, State
from serving.eviction import PATIENCE_SECONDS, EvictionCost, GreedyDual, UsageRates


class ResidentSet:
    """Entries by digest, and the pool's pages and slots. `gone` is called with each entry whose pages are zeroed.

    An entry can be evicted while it is READY, has no pin and has no request in flight.
    """

    def __init__(
        self,
        pool: AdapterPool,
        rates: UsageRates[str],
        counters: AdapterCounters,
        clock: Callable[[], float],
        gone: Callable[[Entry], None],
    ) -> None:
        self.pool, self.page_limit = pool, pool.num_pages
        self.entries: dict[str, Entry] = {}
        self.order = GreedyDual[str](rates)
        self._rates, self._counters, self._clock, self._gone = rates, counters, clock, gone
        self._free_slots = list(range(pool.num_slots - 1, -1, -1))
        # Per digest: the number of requests in flight and the arrival number of the first.
        self._demand: dict[str, tuple[int, int]] = {}
        self._arrivals = itertools.count()
        self._forced_at = 0.0

    def is_ready(self, digest: str) -> bool:
        return (entry := self.entries.get(digest)) is not None and entry.state is State.READY

    # -- demand and pins --------------------------------------------------------------------------------------------

    def expect(self, digests: Iterable[str]) -> None:
        """Note that a request for all of `digests` is in flight."""
        for digest in digests:
            count, since = self._demand.get(digest) or (0, next(self._arrivals))
            self._demand[digest] = count + 1, since
            self.order.hold(digest)

    def forget(self, digests: Iterable[str]) -> None:
        """Undo `expect`: the request has ended."""
        for digest in digests:
            count, since = self._demand[digest]
            if count > 1:
                self._demand[digest] = count - 1, since
            else:
                del self._demand[digest]
                self._offer(digest)

    def is_expected(self, digest: str) -> bool:
        return digest in self._demand

    def seniority(self, digest: str) -> int:
        """Return the arrival number of the earliest request in flight; without one, a number later than all others."""
        demand = self._demand.get(digest)
        return demand[1] if demand is not None else next(self._arrivals)

    def pin(self, entry: Entry) -> None:
        assert entry.state is State.READY, f"pinned while {entry.state.value}"
        entry.pins += 1
        self.order.hold(entry.digest)

    def unpin(self, entry: Entry) -> None:
        entry.pins -= 1
        if entry.pins:
            return
        if entry.state is State.DRAINING:
            self.evict(entry)
        else:
            self._offer(entry.digest)

    # -- room -------------------------------------------------------------------------------------------------------

    def too_large(self, entry: Entry) -> str | None:
        """Return what `entry` needs and no eviction can give it."""
        if entry.pages > self.page_limit:
            return f"{entry.pages} pages, the pool has {self.page_limit}"
        if entry.extra_bytes > (limit := self.pool.extras.limit):
            if not limit:
                return "memory for DoRA, biases, trained tokens or an adapted head, and this replica has none"
            return f"{entry.extra_bytes} bytes for its extras, there are {limit}"
        return None

    def make_room(self, pages: int, extra_bytes: int = 0, *, below: float | None = None) -> bool:
        """Evict until pages, a slot and memory for extras are free; with `below`, only entries of a lower priority.
        Returns success."""
        if not self._make_extra_room(extra_bytes, below):
            return False
        while self._free() < pages or not self._free_slots:
            victim = self.order.peek()
            if victim is None or (below is not None and victim[1] >= below):
                return False
            self.order.evict()
            self.evict(self.entries[victim[0]])
        return True

    def _make_extra_room(self, extra_bytes: int, below: float | None) -> bool:
        """The same for memory of extras, by evicting those that have any, the cheapest to evict first."""
        if extra_bytes <= self.pool.extras.free:
            return True
        now = self._clock()
        with_extras = [e for e in self.entries.values() if e.extra_bytes and e.digest in self.order]
        costs = {e.digest: self.order.priority(e.digest, self._eviction_cost(e), now) for e in with_extras}
        for entry in sorted(with_extras, key=lambda e: costs[e.digest]):
            if extra_bytes <= self.pool.extras.free or (below is not None and costs[entry.digest] >= below):
                break
            self.evict(entry)
        return extra_bytes <= self.pool.extras.free

    def force_room(self, entry: Entry, seniority: int) -> None:
        """Evict what came later than `entry`, then drain running entries, the cheapest to evict first."""
        now = self._clock()
        if now - entry.since < PATIENCE_SECONDS or now - self._forced_at < PATIENCE_SECONDS:
            return
        self._forced_at = now
        ready = [e for e in self.entries.values() if e.state is State.READY and e is not entry]
        later = [(self.seniority(e.digest), e) for e in ready if e.pins == 0 and not e.blends]
        for since, other in sorted(later, key=lambda item: -item[0]):
            if self._free() >= entry.pages and self._free_slots and self.pool.extras.free >= entry.extra_bytes:
                return
            if since > seniority:
                self.evict(other)
        # Draining entries will be room soon; draining more than needed would leave the batch idle.
        draining = [e for e in self.entries.values() if e.state is State.DRAINING]
        coming, slots = self._free() + sum(e.pages for e in draining), len(self._free_slots) + len(draining)
        extra = self.pool.extras.free + sum(e.extra_bytes for e in draining)
        running = [e for e in ready if e.state is State.READY and e.pins and not e.blends]
        for other in sorted(running, key=lambda e: self.order.priority(e.digest, self._eviction_cost(e), now)):
            if coming >= entry.pages and slots:
                if extra >= entry.extra_bytes:
                    return
                if not other.extra_bytes:  # memory for extras alone is short, and it has none
                    continue
            self._counters.drains += 1
            coming, slots, extra = coming + other.pages, slots + 1, extra + other.extra_bytes
            self.drain(other)

    def reserve(self, entry: Entry, pages: int) -> None:
        """Take pages and a slot; call `make_room` first. Raises LoraKernelError if a slot cannot list so many pages."""
        entry.reservation = self.pool.reserve(pages, entry.extra_bytes)
        entry.slot = self._free_slots.pop()

    def cancel(self, entry: Entry) -> None:
        """Zero and free what `reserve` took; do nothing if it took nothing."""
        if entry.reservation is not None:
            self.pool.cancel(entry.reservation)
            entry.reservation = None
        if entry.slot >= 0:
            self._free_slots.append(entry.slot)
            entry.slot = -1

    def set_limit(self, pages: int) -> None:
        """Set how many of the pool's pages may be in use, and evict unused entries down to that."""
        shrinks, self.page_limit = pages < self.page_limit, pages
        while self._free() < 0 and (victim := self.order.evict()) is not None:
            self.evict(self.entries[victim])
            shrinks = True
        if shrinks:
            self.pool.give_back()

    def _free(self) -> int:
        return self.pool.free_pages - (self.pool.num_pages - self.page_limit)

    # -- in and out -------------------------------------------------------------------------------------------------

    def publish(self, entry: Entry) -> None:
        """Turn a written reservation into a slot."""
        assert entry.reservation is not None
        self.pool.publish(entry.slot, entry.reservation)
        entry.reservation = None
        self._arrived(entry)

    def blend(self, entry: Entry) -> None:
        """Make a slot of parts that are READY, without a copy; it pins them. Raises LoraKernelError."""
        parts = [self.entries[part] for part, _ in entry.parts]
        slot = self._free_slots.pop()
        try:
            self.pool.blend(slot, [(p.slot, w) for p, (_, w) in zip(parts, entry.parts, strict=True)])
        except BaseException:
            self._free_slots.append(slot)
            raise
        entry.slot, self.entries[entry.digest] = slot, entry
        for part in parts:
            self.pin(part)
            part.blends.add(entry.digest)
        self._arrived(entry)

    def drain(self, entry: Entry) -> None:
        """Admit no new sequence to `entry` or its blends; evict it when its last pin goes, at once if it has none."""
        for identity in list(entry.blends):
            self.drain(self.entries[identity])
        if self.entries.get(entry.digest) is entry:  # a part may go with its last blend
            entry.state = State.DRAINING
            self.order.hold(entry.digest)
            if entry.pins == 0:
                self.evict(entry)

    def evict(self, entry: Entry) -> None:
        """Zero its pages now; a blend has none of its own."""
        assert entry.pins == 0, "a sequence runs on it"
        self.order.hold(entry.digest)
        del self.entries[entry.digest]
        self.pool.evict(entry.slot)
        self._free_slots.append(entry.slot)
        self._counters.evictions += 1
        self._gone(entry)
        for part, _ in entry.parts:
            holder = self.entries[part]
            holder.blends.discard(entry.digest)
            self.unpin(holder)

    def idle(self, before: float) -> list[Entry]:
        """Evict the entries that were not used since `before` and return them."""
        gone = []
        for digest in self.order.idle(before):
            gone.append(self.entries[digest])
            self.evict(self.entries[digest])
        return gone

    def check_integrity(self) -> None:
        """Raise AssertionError when entries, pool and order disagree."""
        taken = [e.slot for e in self.entries.values() if e.slot >= 0]
        assert sorted(taken + self._free_slots) == list(range(self.pool.num_slots))
        pages = set()
        for entry in self.entries.values():
            resident = entry.state in (State.READY, State.DRAINING)
            assert resident == (entry.slot >= 0 and self.pool.is_loaded(entry.slot))
            assert (entry.digest in self.order) == (
                entry.state is State.READY and entry.pins == 0 and entry.digest not in self._demand
            )
            assert entry.pins >= len(entry.blends) and (resident or entry.pins == 0)
            if resident:
                pages |= set(self.pool.slot_pages(entry.slot))
            elif entry.reservation is not None:
                pages |= set(entry.reservation.pages)
        assert self.pool.num_pages - self.pool.free_pages == len(pages)
        memories = [self._extra_memory(entry) for entry in self.entries.values()]
        assert self.pool.extras.used == sum(memory.nbytes for memory in memories if memory is not None)

    def _extra_memory(self, entry: Entry) -> torch.Tensor | None:
        if entry.reservation is not None:
            return entry.reservation.extra_memory
        extras = self.pool.extras_of(entry.slot)
        return None if extras is None else extras.memory

    def _arrived(self, entry: Entry) -> None:
        entry.state, entry.since = State.READY, self._clock()
        self._offer(entry.digest)

    def _offer(self, digest: str) -> None:
        """Allow its eviction if it is READY, not pinned and not expected."""
        entry = self.entries.get(digest)
        if entry is not None and entry.state is State.READY and entry.pins == 0 and digest not in self._demand:
            self.order.release(digest, self._eviction_cost(entry), self._clock())

    def _eviction_cost(self, entry: Entry) -> EvictionCost:
        # A blend is made again without loading, but holds a slot and pins its parts: it is evicted before they are.
        return EvictionCost(entry.seconds, max(1, entry.pages) * self.page_bytes)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers and sites."""
        return self.pool.spec.page_bytes(self.pool.dtype)
