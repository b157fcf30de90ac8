"""One adapter, or one blend, on its way through memory."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from lora_kernels import AdapterTensors, Reservation


class State(Enum):
    """Where an adapter with an entry is. An adapter that is not in memory at all is cold and has no entry.

    An early reservation lets a load go from DECRYPTING to COPYING without a stop; otherwise it waits for room in HOST.
    """

    DECRYPTING = "decrypting"  # leased, read, decrypted and checked by a worker
    HOST = "host"  # decrypted in host memory, waiting for pages
    COPYING = "copying"  # a worker writes it into reserved pages
    READY = "ready"  # listed by a slot
    DRAINING = "draining"  # admits no new sequence; zeroed when the last pin goes


@dataclass(slots=True, eq=False)
class Entry:
    """One adapter or blend in memory. `tensors` and `reservation` belong to the worker while a job runs.

    began, since: start of the load and of the state, on the manager's clock
    waiting: whether a request waits for it; otherwise it was loaded on a hint
    slot: taken with the reservation; -1 before
    extra_bytes: of the pool's memory for extras
    seconds: what this load took so far, without the wait for room
    killed: a worker may read it at any time
    parts: of a blend, with weights
    blends: identities of the blends that pin it
    """

    digest: str
    state: State
    began: float
    since: float
    waiting: bool = True
    slot: int = -1
    pins: int = 0
    pages: int = 0
    rank: int = 0
    bytes: int = 0
    extra_bytes: int = 0
    seconds: float = 0.0
    killed: bool = False
    tensors: AdapterTensors | None = None
    reservation: Reservation | None = None
    parts: tuple[tuple[str, float], ...] = ()
    blends: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class LoadProfile:
    """Facts about an adapter from a past load: ranks, bytes in host memory, pages."""

    rank: int
    bytes: int
    pages: int


class WaitingQueue:
    """Entries that wait for room, the one requested earliest first. Removal is lazy, O(log n)."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Entry]] = []
        self._inside: set[int] = set()
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._inside)

    def __iter__(self) -> Iterator[Entry]:
        """Iterate in arbitrary order."""
        return (entry for _, _, entry in self._heap if id(entry) in self._inside)

    def add(self, entry: Entry, seniority: int) -> None:
        heapq.heappush(self._heap, (seniority, next(self._order), entry))
        self._inside.add(id(entry))

    def remove(self, entry: Entry) -> None:
        """Remove `entry` if it is queued."""
        self._inside.discard(id(entry))

    def head(self) -> tuple[Entry, int] | None:
        """Return the most senior entry and its seniority."""
        while self._heap:
            seniority, _, entry = self._heap[0]
            if id(entry) in self._inside:
                return entry, seniority
            heapq.heappop(self._heap)
        return None
