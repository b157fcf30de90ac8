"""Adapters of a simulated replica: loads take time, slots are few."""

from __future__ import annotations

import random

from serving.core import Sequence
from serving.steps import AdapterCost

LOAD_SECONDS = 0.15
RANKS = (4, 8, 16, 64)


class SimulatedResidency:
    """A few slots; loads take time and wait for a slot that nobody pins. What requests wait for is evicted only for
    requests that came before them."""

    def __init__(self, slots: int, rng: random.Random) -> None:
        self.slots, self._rng = slots, rng
        self.ready: dict[str, None] = {}  # least recently used first
        self.loading: dict[str, float] = {}
        self.pins: dict[str, int] = {}
        self.revoked: set[str] = set()
        self.expected: dict[str, dict[Sequence, None]] = {}

    def is_ready(self, digest: str | None) -> bool:
        return digest is None or (digest in self.ready and digest not in self.revoked)

    def pin(self, digest: str | None) -> None:
        assert self.is_ready(digest), "only what is ready may be pinned"
        if digest is not None:
            self.pins[digest] = self.pins.get(digest, 0) + 1
            self.ready[digest] = self.ready.pop(digest)

    def unpin(self, digest: str | None) -> None:
        if digest is not None:
            self.pins[digest] -= 1
            assert self.pins[digest] >= 0
            if not self.pins[digest] and digest in self.revoked:
                del self.ready[digest]

    def cost(self, digest: str | None) -> AdapterCost:
        if digest is None:
            return AdapterCost()
        return AdapterCost(RANKS[int(digest[1:]) % 4], 3 << 20, 0.0 if self.is_ready(digest) else LOAD_SECONDS)

    def want(self, digests: list[str], now: float) -> None:
        for digest in digests:
            if digest not in self.loading and digest not in self.revoked:
                self.loading[digest] = now + LOAD_SECONDS * self._rng.uniform(0.7, 2.0)

    def poll(self, now: float) -> None:
        for digest in [d for d, at in self.loading.items() if at <= now]:
            if digest in self.revoked:
                del self.loading[digest]
            elif len(self.ready) < self.slots or self._evict(digest):
                del self.loading[digest]
                self.ready[digest] = None

    def revoke(self, digest: str) -> None:
        self.revoked.add(digest)
        if digest in self.ready and not self.pins.get(digest):
            del self.ready[digest]

    def _evict(self, newcomer: str) -> bool:
        idle = [d for d in self.ready if not self.pins.get(d)]
        for digest in idle:
            if not self.expected.get(digest):
                del self.ready[digest]
                return True
        oldest = min((s.arrival for s in self.expected.get(newcomer, ())), default=float("inf"))
        for digest in idle:
            if min(s.arrival for s in self.expected[digest]) > oldest:
                del self.ready[digest]
                return True
        return False
