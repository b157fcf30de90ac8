"""Which adapters stay, which go, which come early. Pure: no torch, no clock, no I/O. Every operation is O(log n) in the
number of resident adapters and independent of how many are registered."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

HALF_LIFE_SECONDS = 60.0
# Rates of evicted adapters are remembered, so that a popular one that comes back is not treated as new.
REMEMBERED = 16_384


class UsageRates:
    """How often each key is used: a count that halves every `half_life` seconds. Bounded, oldest use goes first."""

    def __init__(self, half_life: float = HALF_LIFE_SECONDS, remembered: int = REMEMBERED) -> None:
        self._decay, self._remembered = math.log(2) / half_life, remembered
        self._counts: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def use(self, key: str, now: float) -> float:
        """Count one use at `now` (seconds) and return the decayed count."""
        count = 1.0 + self.rate(key, now)
        self._counts[key] = (count, now)
        self._counts.move_to_end(key)
        if len(self._counts) > self._remembered:
            self._counts.popitem(last=False)
        return count

    def rate(self, key: str, now: float) -> float:
        """Return the decayed count, 0 for an unknown key."""
        count, at = self._counts.get(key, (0.0, now))
        return count * math.exp(-self._decay * max(0.0, now - at))


@dataclass(frozen=True, slots=True)
class EvictionCost:
    """The cost of evicting one copy: the seconds to load it again, beside the bytes that it frees."""

    seconds: float
    bytes: int


class GreedyDual:
    """Eviction order of one memory level: Greedy-Dual-Size-Frequency (Cherkasova 1998).

    priority = clock + rate · seconds / bytes, where the clock rises to each victim's priority, so that keys which
    were popular once age as others are evicted. Only released keys can be victims; held keys are not in the order.
    """

    def __init__(self, rates: UsageRates) -> None:
        self.rates, self.clock = rates, 0.0
        self._order: list[tuple[float, int, str]] = []
        self._released: OrderedDict[str, tuple[float, int, float]] = OrderedDict()  # priority, stamp, since
        self._stamp = 0

    def __len__(self) -> int:
        """Return how many keys may be evicted."""
        return len(self._released)

    def __contains__(self, key: str) -> bool:
        return key in self._released

    def priority(self, key: str, cost: EvictionCost, now: float) -> float:
        """Return the priority that `key` would have if it were released at `now`."""
        mebibytes = max(cost.bytes, 1) / (1 << 20)
        return self.clock + self.rates.rate(key, now) * max(cost.seconds, 1e-6) / mebibytes

    def release(self, key: str, cost: EvictionCost, now: float) -> None:
        """Allow `key` to be evicted from now on."""
        priority = self.priority(key, cost, now)
        self._stamp += 1
        self._released[key] = (priority, self._stamp, now)
        self._released.move_to_end(key)
        heapq.heappush(self._order, (priority, self._stamp, key))
        if len(self._order) > 64 + 2 * len(self._released):  # stale entries are dropped in bulk: amortised O(log n)
            self._order = [(p, stamp, k) for k, (p, stamp, _) in self._released.items()]
            heapq.heapify(self._order)

    def hold(self, key: str) -> None:
        """Take `key` out of the order: it must stay, or has been evicted by other means. Unknown keys are ignored."""
        self._released.pop(key, None)

    def peek(self) -> tuple[str, float] | None:
        """Return the next victim and its priority."""
        while self._order:
            priority, stamp, key = self._order[0]
            known = self._released.get(key)
            if known is not None and known[1] == stamp:
                return key, priority
            heapq.heappop(self._order)
        return None

    def evict(self) -> str | None:
        """Take the next victim out and raise the clock to its priority."""
        found = self.peek()
        if found is None:
            return None
        key, self.clock = found
        del self._released[key]
        return key

    def idle(self, before: float) -> Iterator[str]:
        """Yield keys released before `before` and not held since, oldest first; evict each before taking the next."""
        while self._released:
            key, (_, _, since) = next(iter(self._released.items()))
            if since >= before:
                return
            yield key
            assert key not in self._released, "the caller evicts each key before it asks for the next"


def load_order(
    wanted: Iterable[str], hints: Iterable[str], busy: Collection[str], refused: Collection[str], room: int
) -> list[tuple[str, bool]]:
    """Choose the next `room` loads: what waiting requests want, in the scheduler's order, then the platform's hints.

    busy: digests that are resident or being loaded
    refused: revoked digests

    Returns each digest with whether a request waits for it. Consumes no more of the iterables than it needs.
    """
    chosen: dict[str, bool] = {}
    for source, waiting in ((wanted, True), (hints, False)):
        for digest in source:
            if digest not in busy and digest not in refused and digest not in chosen:
                chosen[digest] = waiting
                if len(chosen) >= room:
                    return list(chosen.items())
    return list(chosen.items())
