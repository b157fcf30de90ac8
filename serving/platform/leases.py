"""Leases on the replica's own clock since boot, counted from the moment before the replica asks.

Counting from before the request means that the replica never holds a key longer than the vault assumes, however slow
the network is. The vault's clock is never compared with the replica's. Every lease ends two seconds before the vault's
does, which is the time to abort predictions and to zero weights; a suspended machine's clock goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from protocol.replicas import LEASE_SECONDS

CLEARING_SECONDS = 2.0  # of each lease are left to end its streams and to zero its weights
PARTITION_SECONDS = LEASE_SECONDS - CLEARING_SECONDS  # no heartbeat answered for this long: every lease is over


def boot_clock() -> float:
    """Read the seconds since boot, those of a suspended machine included: a lease runs out while it sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Lease:
    """A key on loan; `deadline` is on the table's clock."""

    release_id: str
    digest: str
    deadline: float


class LeaseTable:
    """The digests that this replica may hold right now. Thread-safe.

    `on_end` is called, outside the lock, with each digest whose last lease is over.
    """

    def __init__(self, clock: Callable[[], float] = boot_clock) -> None:
        """Start empty, as if a heartbeat had just been answered."""
        self._clock = clock
        self._leases: dict[str, Lease] = {}
        self._revoked: set[str] = set()
        self._answered_at = clock()
        self._lock = threading.Lock()
        self.on_end: Callable[[str], object] = lambda digest: None

    def now(self) -> float:
        """Read the table's clock; take it before asking the vault for anything."""
        return self._clock()

    def grant(self, release_id: str, digest: str, seconds: float, *, asked_at: float) -> bool:
        """Note a new lease of `seconds` asked for at `asked_at`; return false if it is over or the digest revoked."""
        deadline = asked_at + seconds - CLEARING_SECONDS
        with self._lock:
            if digest in self._revoked or deadline <= self._clock():
                return False
            self._leases[release_id] = Lease(release_id, digest, deadline)
            return True

    def renew(self, held: Iterable[str], seconds_left: Mapping[str, float], *, asked_at: float) -> None:
        """Apply a heartbeat's answer about the leases `held`: leases missing from the answer end.

        A lease granted after the heartbeat was sent is not touched.
        """
        with self._lock:
            self._answered_at = max(self._answered_at, asked_at)
            for release_id in held:
                lease = self._leases.get(release_id)
                if lease is not None:
                    # A lease missing from the answer ends now; `expire` takes it out.
                    left = seconds_left.get(release_id)
                    deadline = self._clock() if left is None else asked_at + left - CLEARING_SECONDS
                    self._leases[release_id] = Lease(release_id, lease.digest, deadline)
        self.expire()

    def revoke(self, digests: Iterable[str]) -> None:
        """End every lease on `digests` and never grant one again in this process."""
        with self._lock:
            self._revoked.update(digests)
            ended = self._take(lambda lease: lease.digest in self._revoked)
        self._announce(ended)

    def expire(self) -> None:
        """End the leases that have run out, or all leases if no heartbeat was answered for 28 s."""
        now = self._clock()
        with self._lock:
            dark = now - self._answered_at >= PARTITION_SECONDS
            ended = self._take(lambda lease: dark or lease.deadline <= now)
        self._announce(ended)

    def drop_all(self) -> None:
        """End every lease: the session they belonged to is gone."""
        with self._lock:
            ended = self._take(lambda lease: True)
        self._announce(ended)

    def give_back(self, digest: str) -> None:
        """Forget the leases on `digest`, which is no longer held; `on_end` is not called."""
        with self._lock:
            self._take(lambda lease: lease.digest == digest)

    def is_live(self, digest: str) -> bool:
        """Return whether some lease on `digest` has not run out at this very moment."""
        now = self._clock()
        with self._lock:
            if now - self._answered_at >= PARTITION_SECONDS:
                return False
            return any(lease.digest == digest and lease.deadline > now for lease in self._leases.values())

    def is_revoked(self, digest: str) -> bool:
        """Return whether the platform withdrew `digest`."""
        with self._lock:
            return digest in self._revoked

    def held(self) -> list[str]:
        """Return the release ids to renew."""
        with self._lock:
            return list(self._leases)

    def digests(self) -> list[str]:
        """Return the digests on lease, sorted."""
        with self._lock:
            return sorted({lease.digest for lease in self._leases.values()})

    def _take(self, ends: Callable[[Lease], bool]) -> set[str]:
        over = [lease for lease in self._leases.values() if ends(lease)]
        for lease in over:
            del self._leases[lease.release_id]
        left = {lease.digest for lease in self._leases.values()}
        return {lease.digest for lease in over} - left

    def _announce(self, ended: set[str]) -> None:
        for digest in sorted(ended):
            self.on_end(digest)
