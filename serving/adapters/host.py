"""The middle level: decrypted copies in host memory, so that a reload needs no lease and no decryption."""

from __future__ import annotations

from dataclasses import dataclass

from lora_kernels import AdapterTensors
from serving.eviction import EvictionCost, GreedyDual, UsageRates


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A decrypted adapter that stays after it was copied into the pool."""

    tensors: AdapterTensors
    bytes: int


class HostLevel:
    """Keeps copies up to `budget` bytes and chooses victims by GDSF; 0 keeps none. The caller wipes the victims."""

    def __init__(self, budget: int, rates: UsageRates[str]) -> None:
        self.budget, self.used = budget, 0
        self._copies: dict[str, HostCopy] = {}
        self._order = GreedyDual[str](rates)

    def __contains__(self, digest: str) -> bool:
        return digest in self._copies

    def __len__(self) -> int:
        return len(self._copies)

    def digests(self) -> list[str]:
        """Return the adapters that have a copy. Safe to ask from any thread."""
        return list(self._copies)

    def get(self, digest: str) -> HostCopy | None:
        return self._copies.get(digest)

    def keep(self, digest: str, copy: HostCopy, seconds: float, now: float) -> tuple[bool, list[str]]:
        """Take a copy in, unless it is too large or worth less than what is here.

        Returns whether it was taken in, and the digests of the copies that had to go.
        """
        if copy.bytes > self.budget:
            return False, []
        cost = EvictionCost(seconds, copy.bytes)
        priority = self._order.priority(digest, cost, now)
        gone: list[str] = []
        while self.used + copy.bytes > self.budget:
            victim = self._order.peek()
            if victim is None or victim[1] > priority:
                return False, gone
            self._order.evict()
            self.used -= self._copies.pop(victim[0]).bytes
            gone.append(victim[0])
        self._copies[digest] = copy
        self.used += copy.bytes
        self._order.release(digest, cost, now)
        return True, gone

    def drop(self, digest: str) -> HostCopy | None:
        """Forget a copy; the caller wipes it."""
        copy = self._copies.pop(digest, None)
        if copy is not None:
            self.used -= copy.bytes
            self._order.hold(digest)
        return copy

    def touch(self, digest: str, seconds: float, now: float) -> None:
        """Move a copy to the place in the eviction order that its usage rate gives it now."""
        self._order.release(digest, EvictionCost(seconds, self._copies[digest].bytes), now)

    def idle(self, before: float) -> list[str]:
        """Take out the copies not touched since `before` and return their digests."""
        gone = []
        for digest in self._order.idle(before):
            self.drop(digest)
            gone.append(digest)
        return gone
