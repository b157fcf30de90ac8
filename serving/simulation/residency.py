"""Adapters of a simulated replica: loads take time, pages and slots are few, and the shipped order of eviction decides
which go (`serving.eviction`), as in `serving.adapters`."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from serving.adapters.load_times import LoadTimes
from serving.adapters.policy import load_order
from serving.core import Sequence
from serving.eviction import PATIENCE_SECONDS, EvictionCost, GreedyDual, UsageRates
from serving.steps import AdapterCost

PAGE_RANK = 16
_EPSILON = 1e-9
_TIMES_KEPT = 100_000


class SimulatedResidency:
    """The scheduler's `Residency` over `pages` pages and `slots` slots.

    rank: an adapter's; load_seconds: of one load that nothing disturbs, drawn anew for each
    workers: loads at once; None: any number
    """

    def __init__(
        self,
        slots: int,
        *,
        rank: Callable[[str], int],
        load_seconds: Callable[[str], float],
        pages: int | None = None,
        page_bytes: int = 1 << 20,
        workers: int | None = None,
    ) -> None:
        self.slots, self.pages = slots, slots if pages is None else pages
        self._sized = pages is not None
        self.loads = self.evictions = 0
        self.pins: dict[str, int] = {}
        self.revoked: set[str] = set()
        self.rank, self._seconds, self._page_bytes = rank, load_seconds, page_bytes
        self._workers = workers if workers is not None else 1 << 30
        self._ready: dict[str, float] = {}  # digest → seconds of its load
        self._draining: set[str] = set()
        self._jobs: dict[str, list[float]] = {}  # digest → [seconds left, seconds in all]
        self._loaded: dict[str, tuple[float, float]] = {}  # waits for room: digest → (seconds, since)
        self._demand: dict[str, tuple[int, int]] = {}
        self._used = 0
        self._arrivals = itertools.count()
        self._forced_at = -PATIENCE_SECONDS
        self._rates = UsageRates[str]()
        self._order = GreedyDual[str](self._rates)
        self._times = LoadTimes(_TIMES_KEPT)
        self._now = 0.0

    # -- the scheduler asks -----------------------------------------------------------------------------------------

    def is_ready(self, digest: str | None) -> bool:
        return digest is None or (digest in self._ready and digest not in self._draining)

    def pin(self, digest: str | None) -> None:
        assert self.is_ready(digest), "only what is ready may be pinned"
        if digest is not None:
            self.pins[digest] = self.pins.get(digest, 0) + 1
            self._order.hold(digest)
            self._rates.use(digest, self._now)

    def unpin(self, digest: str | None) -> None:
        if digest is None:
            return
        self.pins[digest] -= 1
        assert self.pins[digest] >= 0
        if not self.pins[digest]:
            del self.pins[digest]
            if digest in self._draining:
                self._evict(digest)
            else:
                self._offer(digest)

    def cost(self, digest: str | None) -> AdapterCost:
        if digest is None:
            return AdapterCost()
        seconds = 0.0
        if not self.is_ready(digest):
            left, total = self._jobs.get(digest, (0.0, 0.0))
            waited = self._loaded.get(digest)
            elapsed = total - left if waited is None else waited[0] + self._now - waited[1]
            seconds = self._times.expected(digest, elapsed)
        return AdapterCost(self.rank(digest), self._pages_of(digest) * self._page_bytes, seconds)

    # -- the replica tells ------------------------------------------------------------------------------------------

    def expect(self, sequence: Sequence) -> None:
        """Keep what a request needs, once it is there, until `forget`."""
        if (digest := sequence.digest) is not None:
            count, since = self._demand.get(digest) or (0, next(self._arrivals))
            self._demand[digest] = count + 1, since
            self._order.hold(digest)

    def forget(self, sequence: Sequence) -> None:
        """Undo `expect`: the request has ended."""
        if (digest := sequence.digest) is not None:
            count, since = self._demand[digest]
            if count > 1:
                self._demand[digest] = count - 1, since
            else:
                del self._demand[digest]
                self._offer(digest)

    def want(self, digests: list[str], now: float) -> None:
        """Begin loads, in this order, as far as workers are free."""
        self._now = now
        room = self._workers - len(self._jobs) - len(self._loaded)
        if room <= 0 or not digests:
            return
        busy = self._ready.keys() | self._jobs.keys() | self._loaded.keys()
        for digest, _ in load_order(digests, (), busy, self.revoked, room):
            seconds = self._seconds(digest)
            self._jobs[digest] = [seconds, seconds]

    def pass_time(self, seconds: float, speed: float) -> None:
        """Let loads go on for `seconds`, at a share of their speed."""
        for job in self._jobs.values():
            job[0] -= seconds * speed

    def poll(self, now: float) -> None:
        """Take over finished loads, and place them where there is room, the earliest asked for first."""
        self._now = now
        for digest in [digest for digest, (left, _) in self._jobs.items() if left <= _EPSILON]:
            _, seconds = self._jobs.pop(digest)
            if digest not in self.revoked:
                self._loaded[digest] = seconds, now
                self._times.learn(digest, seconds)
        for digest in sorted(self._loaded, key=self._seniority):
            if not self._make_room(digest):
                self._force_room(digest, now)
                if not self._make_room(digest):
                    return
            seconds, _ = self._loaded.pop(digest)
            self._ready[digest] = seconds
            self._used += self._pages_of(digest)
            self.loads += 1
            self._offer(digest)

    def next_arrival(self, now: float) -> float | None:
        """Return when a load ends, or a loaded adapter may make room by force, if no step is computed until then."""
        times = [now + max(0.0, left) for left, _ in self._jobs.values()]
        times += [max(since, self._forced_at) + PATIENCE_SECONDS for _, since in self._loaded.values()]
        return min(times, default=None)

    @property
    def loading(self) -> bool:
        """Return whether any load runs."""
        return bool(self._jobs)

    @property
    def resident(self) -> list[str]:
        """Return the adapters that are ready."""
        return [digest for digest in self._ready if digest not in self._draining]

    def warm(self, digests: list[str]) -> None:
        """Make adapters resident without a load, in this order, as far as there is room."""
        for digest in digests:
            if len(self._ready) >= self.slots or self._used + self._pages_of(digest) > self.pages:
                return
            self._ready[digest] = seconds = self._seconds(digest)
            self._times.learn(digest, seconds)
            self._used += self._pages_of(digest)
            self._rates.use(digest, self._now)
            self._offer(digest)

    def revoke(self, digest: str) -> None:
        """Refuse an adapter; its pages are freed when the last pin goes."""
        self.revoked.add(digest)
        self._loaded.pop(digest, None)
        if digest in self._ready:
            self._drain(digest)

    def readmit(self, digest: str) -> None:
        """Lift a revocation."""
        self.revoked.discard(digest)

    def check_integrity(self) -> None:
        """Raise AssertionError when counts, pins and order disagree."""
        assert self._used == sum(map(self._pages_of, self._ready)) <= self.pages and len(self._ready) <= self.slots
        assert self.pins.keys() <= self._ready.keys()
        for digest in self._ready:
            idle = digest not in self.pins and digest not in self._demand and digest not in self._draining
            assert (digest in self._order) == idle, digest

    # -- room -------------------------------------------------------------------------------------------------------

    def _pages_of(self, digest: str) -> int:
        return max(1, -(-self.rank(digest) // PAGE_RANK)) if self._sized else 1

    def _has_room(self, digest: str) -> bool:
        return len(self._ready) < self.slots and self._used + self._pages_of(digest) <= self.pages

    def _make_room(self, digest: str) -> bool:
        while not self._has_room(digest):
            victim = self._order.evict()
            if victim is None:
                return False
            self._evict(victim)
        return True

    def _force_room(self, digest: str, now: float) -> None:
        """Evict what came later, then close running adapters to new sequences, the cheapest first."""
        _, since = self._loaded[digest]
        if min(now - since, now - self._forced_at) < PATIENCE_SECONDS - _EPSILON:
            return
        self._forced_at = now
        seniority = self._seniority(digest)
        idle = [other for other in self._ready if other not in self.pins]
        for other in sorted(idle, key=self._seniority, reverse=True):
            if self._has_room(digest):
                return
            if self._seniority(other) > seniority:
                self._evict(other)
        slots = self.slots - len(self._ready) + len(self._draining)
        pages = self.pages - self._used + sum(map(self._pages_of, self._draining))
        running = [other for other in self.pins if other not in self._draining]
        for other in sorted(running, key=lambda d: self._order.priority(d, self._cost_of(d), now)):
            if slots > 0 and pages >= self._pages_of(digest):
                return
            slots, pages = slots + 1, pages + self._pages_of(other)
            self._drain(other)

    def _seniority(self, digest: str) -> int:
        demand = self._demand.get(digest)
        return demand[1] if demand is not None else 1 << 60

    def _drain(self, digest: str) -> None:
        self._draining.add(digest)
        self._order.hold(digest)
        if digest not in self.pins:
            self._evict(digest)

    def _evict(self, digest: str) -> None:
        self._order.hold(digest)
        del self._ready[digest]
        self._draining.discard(digest)
        self._used -= self._pages_of(digest)
        self.evictions += 1

    def _offer(self, digest: str) -> None:
        """Allow the eviction of an adapter that no sequence uses and no request expects."""
        if digest not in self.pins and digest not in self._demand and self.is_ready(digest):
            self._order.release(digest, self._cost_of(digest), self._now)

    def _cost_of(self, digest: str) -> EvictionCost:
        return EvictionCost(self._ready[digest], self._pages_of(digest) * self._page_bytes)
