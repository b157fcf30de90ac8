"""The order of eviction, for any memory level: how often keys are used, and which goes first. Pure: no torch,
no clock, no I/O. Every operation is O(log n) in the number of keys that may be evicted."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

HALF_LIFE_SECONDS = 60.0
# An adapter that has waited this long makes room by force: adapters in use are closed to new sequences. If that is not
# enough, it is repeated after as long again.
PATIENCE_SECONDS = 0.25
# Rates of evicted keys are remembered, so that a popular one that comes back is not treated as new.
REMEMBERED = 16_384


class UsageRates(Generic[K]):
    """How often each key is used: a count that halves every `half_life` seconds. Bounded, oldest use goes first."""

    def __init__(self, half_life: float = HALF_LIFE_SECONDS, remembered: int = REMEMBERED) -> None:
        self._decay, self._remembered = math.log(2) / half_life, remembered
        self._counts: OrderedDict[K, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def use(self, key: K, now: float) -> float:
        """Count one use at `now` (seconds) and return the decayed count."""
        count = 1.0 + self.rate(key, now)
        self._counts[key] = (count, now)
        self._counts.move_to_end(key)
        if len(self._counts) > self._remembered:
            self._counts.popitem(last=False)
        return count

    def rate(self, key: K, now: float) -> float:
        """Return the decayed count, 0 for an unknown key."""
        count, at = self._counts.get(key, (0.0, now))
        return count * math.exp(-self._decay * max(0.0, now - at))


@dataclass(frozen=True, slots=True)
class EvictionCost:
    """The cost of evicting one copy: the seconds to load it again, beside the bytes that it frees."""

    seconds: float
    bytes: int


class GreedyDual(Generic[K]):
    """Eviction order of one memory level: Greedy-Dual-Size-Frequency (Cherkasova 1998).

    priority = clock + rate · seconds / bytes, where the clock rises to each victim's priority, so that keys which
    were popular once age as others are evicted. Only released keys can be victims; held keys are not in the order.
    """

    def __init__(self, rates: UsageRates[K]) -> None:
        self.rates, self.clock = rates, 0.0
        self._order: list[tuple[float, int, K]] = []
        self._released: OrderedDict[K, tuple[float, int, float]] = OrderedDict()  # priority, stamp, since
        self._stamp = 0

    def __len__(self) -> int:
        """Return how many keys may be evicted."""
        return len(self._released)

    def __contains__(self, key: K) -> bool:
        return key in self._released

    def priority(self, key: K, cost: EvictionCost, now: float) -> float:
        """Return the priority that `key` would have if it were released at `now`."""
        mebibytes = max(cost.bytes, 1) / (1 << 20)
        return self.clock + self.rates.rate(key, now) * max(cost.seconds, 1e-6) / mebibytes

    def admits(self, key: K, cost: EvictionCost, now: float) -> bool:
        """Return whether a newcomer is worth at least as much as the next victim. One that is not is the victim itself:
        the clock rises to its priority, so that keys which were popular once age by those that are turned away too."""
        worst, priority = self.peek(), self.priority(key, cost, now)
        if worst is None or priority >= worst[1]:
            return True
        self.clock = priority
        return False

    def release(self, key: K, cost: EvictionCost, now: float) -> None:
        """Allow `key` to be evicted from now on."""
        priority = self.priority(key, cost, now)
        self._stamp += 1
        self._released[key] = (priority, self._stamp, now)
        self._released.move_to_end(key)
        heapq.heappush(self._order, (priority, self._stamp, key))
        if len(self._order) > 64 + 2 * len(self._released):  # stale entries are dropped in bulk: amortised O(log n)
            self._order = [(p, stamp, k) for k, (p, stamp, _) in self._released.items()]
            heapq.heapify(self._order)

    def hold(self, key: K) -> None:
        """Take `key` out of the order: it must stay, or has been evicted by other means. Unknown keys are ignored."""
        self._released.pop(key, None)

    def peek(self) -> tuple[K, float] | None:
        """Return the next victim and its priority."""
        while self._order:
            priority, stamp, key = self._order[0]
            known = self._released.get(key)
            if known is not None and known[1] == stamp:
                return key, priority
            heapq.heappop(self._order)
        return None

    def evict(self) -> K | None:
        """Take the next victim out and raise the clock to its priority."""
        found = self.peek()
        if found is None:
            return None
        key, self.clock = found
        del self._released[key]
        return key

    def idle(self, before: float) -> Iterator[K]:
        """Yield keys released before `before` and not held since, oldest first; evict each before taking the next."""
        while self._released:
            key, (_, _, since) = next(iter(self._released.items()))
            if since >= before:
                return
            yield key
            assert key not in self._released, "the caller evicts each key before it asks for the next"
