"""The queue of waiting sequences, by class, tenant and due time; and the deadlines of all sequences in flight."""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from serving.core import LatencyClass, Sequence, Status
from serving.scheduler.slo import Targets

CLASSES = len(LatencyClass)

# (due, serial, sequence): the serial is unique, so sequences are never compared.
_Entry = tuple[float, int, Sequence]


@dataclass(slots=True)
class _Place:
    rank: int
    resumed: bool
    due: float
    serial: int


class WaitQueue:
    """Serves by class; within a class, sequences interrupted while streaming first, then tenants by `key`; within a
    tenant, the earliest due first. `starving` names the class that has waited too long for better ones."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._tenants: list[dict[str, list[_Entry]]] = [{} for _ in range(CLASSES)]
        self._resumed: list[list[_Entry]] = [[] for _ in range(CLASSES)]
        self._places: dict[Sequence, _Place] = {}
        self._aging: list[_Entry] = []
        self._aged: list[dict[Sequence, None]] = [{} for _ in range(CLASSES)]
        self._serial = itertools.count()
        self._by_tenant: Counter[str] = Counter()
        self._by_class: Counter[LatencyClass] = Counter()
        self.aged = 0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate over the waiting sequences, oldest push first."""
        return iter(self._places)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._places

    def waiting_of(self, tenant: str) -> int:
        return self._by_tenant[tenant]

    def lengths(self) -> dict[LatencyClass, int]:
        """Return the number of waiting sequences per requested class."""
        return {latency_class: self._by_class[latency_class] for latency_class in LatencyClass}

    def push(self, sequence: Sequence) -> None:
        """Add a new sequence or a preempted one; a preempted one that has produced tokens is served before new ones."""
        rank = sequence.request.latency_class.value
        place = _Place(rank, sequence.output_tokens > 0, self._targets.due(sequence), next(self._serial))
        self._places[sequence] = place
        self._insert(sequence, place)
        self._by_tenant[sequence.request.tenant] += 1
        self._by_class[sequence.request.latency_class] += 1
        if rank:
            heapq.heappush(
                self._aging, (sequence.arrival + self._targets.of(sequence).max_wait, place.serial, sequence)
            )

    def remove(self, sequence: Sequence) -> None:
        """Remove a waiting sequence. Raises KeyError if it does not wait."""
        place = self._places.pop(sequence)
        self._take_out(sequence, place)
        tenant = sequence.request.tenant
        self._by_tenant[tenant] -= 1
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]
        self._by_class[sequence.request.latency_class] -= 1
        self._aged[place.rank].pop(sequence, None)
        if len(self._aging) > 64 + 2 * len(self._places):
            self._aging = [entry for entry in self._aging if self._is_current(entry)]
            heapq.heapify(self._aging)

    def age(self, now: float) -> None:
        """Note which sequences have waited for their class's `max_wait`."""
        while self._aging and self._aging[0][0] <= now:
            entry = heapq.heappop(self._aging)
            if self._is_current(entry):
                self._aged[self._places[entry[2]].rank][entry[2]] = None
                self.aged += 1

    @property
    def starving(self) -> int | None:
        """The class whose sequences have been overdue for longest; None without overdue sequences.

        Whole classes starve, not sequences: serving single sequences first would take shares from tenants that are
        served faster because of their weight.
        """
        oldest = [(next(iter(aged)).arrival, rank) for rank, aged in enumerate(self._aged) if aged]
        return min(oldest)[1] if oldest else None

    def in_turn(self, key: Callable[[str, Sequence], float], first: int | None = None) -> Iterator[Sequence]:
        """Iterate over waiting sequences in the order of service. The queue must not change meanwhile.

        key: ranks a tenant, given its first sequence
        first: a class to serve before the others
        """
        for rank in range(CLASSES) if first is None else (first, *(r for r in range(CLASSES) if r != first)):
            for _, _, sequence in self._resumed[rank]:
                yield sequence
            for entries in self._ordered(rank, key):
                for _, _, sequence in entries:
                    yield sequence

    def preview(self, key: Callable[[str, Sequence], float]) -> Iterator[Sequence]:
        """Iterate like `in_turn`, but alternate between tenants of a class: roughly the order of the coming steps."""
        for rank in range(CLASSES):
            for _, _, sequence in self._resumed[rank]:
                yield sequence
            for turn in itertools.zip_longest(*self._ordered(rank, key)):
                for entry in turn:
                    if entry is not None:
                        yield entry[2]

    def _ordered(self, rank: int, key: Callable[[str, Sequence], float]) -> list[list[_Entry]]:
        tenants = self._tenants[rank]
        if len(tenants) < 2:
            return list(tenants.values())
        ordered = sorted((key(tenant, entries[0][2]), entries[0][:2], tenant) for tenant, entries in tenants.items())
        return [tenants[tenant] for _, _, tenant in ordered]

    def _insert(self, sequence: Sequence, place: _Place) -> None:
        entry = (place.due, place.serial, sequence)
        if place.resumed:
            insort(self._resumed[place.rank], entry)
        else:
            insort(self._tenants[place.rank].setdefault(sequence.request.tenant, []), entry)

    def _take_out(self, sequence: Sequence, place: _Place) -> None:
        tenant = sequence.request.tenant
        entries = self._resumed[place.rank] if place.resumed else self._tenants[place.rank][tenant]
        del entries[bisect_left(entries, (place.due, place.serial))]  # a prefix of an entry sorts just before it
        if not place.resumed and not entries:
            del self._tenants[place.rank][tenant]

    def _is_current(self, entry: _Entry) -> bool:
        place = self._places.get(entry[2])
        return place is not None and place.serial == entry[1]

    def check_integrity(self) -> None:
        """Raise AssertionError when the indexes disagree."""
        listed = [entry for rank in range(CLASSES) for entry in self._resumed[rank]]
        for tenants in self._tenants:
            for entries in tenants.values():
                assert entries, "empty tenants are removed"
                listed += entries
        assert len(listed) == len(self._places) == sum(self._by_tenant.values()) == sum(self._by_class.values())
        assert all(self._is_current(entry) and entry[2].status is Status.WAITING for entry in listed)


class Deadlines:
    """Finds the sequences in flight that are late. Finished sequences are removed in bulk."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._serial = itertools.count()

    def add(self, sequence: Sequence) -> None:
        if sequence.request.deadline is not None:
            heapq.heappush(self._heap, (sequence.request.deadline, next(self._serial), sequence))

    def passed(self, now: float) -> list[Sequence]:
        """Return the sequences whose deadline has passed, each of them once."""
        late = []
        while self._heap and self._heap[0][0] <= now:
            _, _, sequence = heapq.heappop(self._heap)
            if sequence.status is not Status.FINISHED:
                late.append(sequence)
        return late

    def forget_finished(self, live: int) -> None:
        """Remove finished sequences when they dominate. Call it regularly with the number of sequences in flight, or
        finished ones are kept until their deadline."""
        if len(self._heap) > 64 + 2 * live:
            self._heap = [entry for entry in self._heap if entry[2].status is not Status.FINISHED]
            heapq.heapify(self._heap)
