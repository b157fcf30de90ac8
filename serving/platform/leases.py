"""Leases on the replica's own clock since boot, counted from the moment before the replica speaks to the platform.

Counting from before means that the replica never holds a key longer than the vault assumes, however slow the network
is. The vault's clock is never compared with the replica's. Every lease ends two seconds before the vault's does, which
is the time to abort predictions and to zero weights; a suspended machine's clock goes on.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from protocol.replicas import LEASE_SECONDS

CLEARING_SECONDS = 2.0  # of each lease are left to end its streams and to zero its weights
PARTITION_SECONDS = LEASE_SECONDS - CLEARING_SECONDS  # nothing answered for this long: every lease is over
_REMEMBERED = 10_000  # leases that ended or were given back


def boot_clock() -> float:
    """Read the seconds since boot, those of a suspended machine included: a lease runs out while it sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Lease:
    """A key on loan."""

    release_id: str
    digest: str


class LeaseTable:
    """The digests that this replica may hold right now. Thread-safe.

    A lease lives while the session does: until 28 s after the last word that the platform has answered. `on_end` is
    called, outside the lock, with each digest whose last lease is over.
    """

    def __init__(self, clock: Callable[[], float] = boot_clock) -> None:
        """Start empty, as if the platform had just answered."""
        self._clock = clock
        self._leases: dict[str, Lease] = {}
        self._revoked: set[str] = set()
        self._ended: OrderedDict[str, None] = OrderedDict()  # leases that ended, perhaps before their key arrived
        self._returned: OrderedDict[str, None] = OrderedDict()
        self._answered_at = self._session_since = clock()
        self._lock = threading.Lock()
        self.on_end: Callable[[str], object] = lambda digest: None

    def now(self) -> float:
        """Read the table's clock; take it before asking the vault for anything."""
        return self._clock()

    def grant(self, release_id: str, digest: str, *, asked_at: float) -> bool:
        """Note a new lease asked for at `asked_at`; return false if it is over already.

        It is over if it was ended or its digest revoked while the key was on its way, if the session that asked for it
        is gone, and if the platform was not heard for too long.
        """
        with self._lock:
            over = digest in self._revoked or release_id in self._ended or asked_at < self._session_since
            if over or self._is_dark():
                self._give_back(release_id)
                return False
            self._leases[release_id] = Lease(release_id, digest)
            return True

    def renew(self, *, asked_at: float) -> None:
        """Note that the platform has answered what was said at `asked_at`: every lease goes on."""
        with self._lock:
            # A word from before a partition that ended everything revives nothing.
            self._answered_at = max(self._answered_at, asked_at)

    def revoke(self, digests: Iterable[str]) -> list[str]:
        """End every lease on `digests` and never grant one again in this process; return those that are news."""
        with self._lock:
            news = [digest for digest in digests if digest not in self._revoked]
            self._revoked.update(news)
            ended = self._take(lambda lease: lease.digest in self._revoked)
        self._announce(ended)
        return news

    def end(self, release_ids: Iterable[str]) -> None:
        """End leases, also those whose keys have yet to arrive; their digests may be asked for again."""
        with self._lock:
            gone = set(release_ids)
            self._ended.update(dict.fromkeys(gone))
            while len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)
            ended = self._take(lambda lease: lease.release_id in gone)
        self._announce(ended)

    def expire(self) -> None:
        """End all leases if the platform has answered nothing for 28 s."""
        with self._lock:
            if not self._is_dark():
                return
            for release_id in self._leases:
                self._give_back(release_id)  # the platform may have heard of this replica two seconds later
            ended = self._take(lambda lease: True)
        self._announce(ended)

    def drop_all(self) -> None:
        """End every lease: the session they belonged to is gone, with what is still on its way to it."""
        with self._lock:
            self._session_since = self._clock()
            self._returned.clear()
            ended = self._take(lambda lease: True)
        self._announce(ended)

    def give_back(self, digest: str) -> None:
        """Forget the leases on `digest`, which is no longer held, and tell the platform; `on_end` is not called."""
        with self._lock:
            gone = [lease.release_id for lease in self._leases.values() if lease.digest == digest]
            self._take(lambda lease: lease.digest == digest)
            for release_id in gone:
                self._give_back(release_id)

    def returned(self, most: int) -> list[str]:
        """Return leases that were given back and that the platform has not confirmed, oldest first."""
        with self._lock:
            return list(islice(self._returned, most))

    def confirm_returned(self, release_ids: Iterable[str]) -> None:
        """Note that the platform knows that these were given back."""
        with self._lock:
            for release_id in release_ids:
                self._returned.pop(release_id, None)

    def is_live(self, digest: str) -> bool:
        """Return whether some lease on `digest` lives at this very moment."""
        with self._lock:
            return not self._is_dark() and any(lease.digest == digest for lease in self._leases.values())

    def is_revoked(self, digest: str) -> bool:
        """Return whether the platform withdrew `digest`."""
        with self._lock:
            return digest in self._revoked

    def held(self) -> list[str]:
        """Return the release ids of the leases."""
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

    def _is_dark(self) -> bool:
        return self._clock() - self._answered_at >= PARTITION_SECONDS

    def _give_back(self, release_id: str) -> None:
        self._returned[release_id] = None
        while len(self._returned) > _REMEMBERED:
            self._returned.popitem(last=False)

    def _announce(self, ended: set[str]) -> None:
        for digest in sorted(ended):
            self.on_end(digest)
