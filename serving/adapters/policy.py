"""Which adapters stay, which go, which come early. Pure: no torch, no clock, no I/O; every operation is O(log n) in
what is resident, whatever is registered."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

HALF_LIFE_SECONDS = 60.0
# Rates of adapters that are gone are remembered, so that a popular one that comes back is not taken for a stranger.
REMEMBERED = 16_384


class UsageRates:
    """How often each key is used: a count that halves every `half_life` seconds. Bounded, oldest use goes first."""

    def __init__(self, half_life: float = HALF_LIFE_SECONDS, remembered: int = REMEMBERED) -> None:
        self._decay, self._remembered = math.log(2) / half_life, remembered
        self._counts: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def use(self, key: str, now: float) -> float:
        """Counts one use at `now` (seconds); returns the decayed count."""
        count = 1.0 + self.rate(key, now)
        self._counts[key] = (count, now)
        self._counts.move_to_end(key)
        if len(self._counts) > self._remembered:
            self._counts.popitem(last=False)
        return count

    def rate(self, key: str, now: float) -> float:
        """The decayed count, 0 for a stranger."""
        count, at = self._counts.get(key, (0.0, now))
        return count * math.exp(-self._decay * max(0.0, now - at))


@dataclass(frozen=True, slots=True)
class EvictionCost:
    """What evicting one copy would cost: the seconds to load it again, beside the bytes that it frees."""

    seconds: float
    bytes: int


class GreedyDual:
    """Eviction order of one memory level: Greedy-Dual-Size-Frequency (Cherkasova 1998).

    priority = clock + rate · seconds / bytes, where the clock rises to each victim's priority: what was once
    popular ages as others go. Only released keys can be victims; a key that is held has no place in the order.
    """

    def __init__(self, rates: UsageRates) -> None:
        self.rates, self.clock = rates, 0.0
        self._order: list[tuple[float, int, str]] = []
        self._released: OrderedDict[str, tuple[float, int, float]] = OrderedDict()  # priority, stamp, since
        self._stamp = 0

    def __len__(self) -> int:
        """Keys that could go."""
        return len(self._released)

    def __contains__(self, key: str) -> bool:
        return key in self._released

    def priority(self, key: str, cost: EvictionCost, now: float) -> float:
        """Where `key` would stand if it were released at `now`."""
        mebibytes = max(cost.bytes, 1) / (1 << 20)
        return self.clock + self.rates.rate(key, now) * max(cost.seconds, 1e-6) / mebibytes

    def release(self, key: str, cost: EvictionCost, now: float) -> None:
        """From now on `key` may be evicted."""
        priority = self.priority(key, cost, now)
        self._stamp += 1
        self._released[key] = (priority, self._stamp, now)
        self._released.move_to_end(key)
        heapq.heappush(self._order, (priority, self._stamp, key))
        if len(self._order) > 64 + 2 * len(self._released):  # stale entries are dropped in bulk: amortised O(log n)
            self._order = [(p, stamp, k) for k, (p, stamp, _) in self._released.items()]
            heapq.heapify(self._order)

    def hold(self, key: str) -> None:
        """`key` must stay, or is gone by other means. Unknown keys are fine."""
        self._released.pop(key, None)

    def peek(self) -> tuple[str, float] | None:
        """The next victim and its priority."""
        while self._order:
            priority, stamp, key = self._order[0]
            known = self._released.get(key)
            if known is not None and known[1] == stamp:
                return key, priority
            heapq.heappop(self._order)
        return None

    def evict(self) -> str | None:
        """Takes the next victim out and raises the clock to its priority."""
        found = self.peek()
        if found is None:
            return None
        key, self.clock = found
        del self._released[key]
        return key

    def idle(self, before: float) -> Iterator[str]:
        """Keys released before `before` and not held since, longest first. Evict each before asking for the next."""
        while self._released:
            key, (_, _, since) = next(iter(self._released.items()))
            if since >= before:
                return
            yield key
            assert key not in self._released, "the caller takes out what it was given"


def load_order(
    wanted: Iterable[str], hints: Iterable[str], busy: Collection[str], refused: Collection[str], room: int
) -> list[tuple[str, bool]]:
    """The next `room` loads: first what waiting requests want, in the scheduler's order, then the platform's hints.

    `busy` is resident or on its way, `refused` is revoked. Each comes with whether a request waits for it. Looks no
    further than the last one it takes.
    """
    chosen: dict[str, bool] = {}
    for source, waiting in ((wanted, True), (hints, False)):
        for digest in source:
            if digest not in busy and digest not in refused and digest not in chosen:
                chosen[digest] = waiting
                if len(chosen) >= room:
                    return list(chosen.items())
    return list(chosen.items())
