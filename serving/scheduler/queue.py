"""Waiting requests, first in first out within a tenant, tenants taking turns."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from serving.core import Sequence


class FairQueue:
    """Round-robin over tenants. A tenant moves to the back of the round when one of its requests is taken."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, deque[Sequence]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Sequence]:
        """Every waiting sequence, in no promised order."""
        for queue in self._tenants.values():
            yield from queue

    def push(self, sequence: Sequence, *, front: bool = False) -> None:
        queue = self._tenants.setdefault(sequence.request.tenant, deque())
        (queue.appendleft if front else queue.append)(sequence)
        self._size += 1

    def remove(self, sequence: Sequence) -> None:
        """Takes out a sequence that is waiting; raises KeyError or ValueError if it is not."""
        tenant = sequence.request.tenant
        self._tenants[tenant].remove(sequence)
        self._size -= 1
        if not self._tenants[tenant]:
            del self._tenants[tenant]

    def next(self, eligible: Callable[[Sequence], bool]) -> Sequence | None:
        """The first eligible sequence of the tenant whose turn it is; sequences that are not eligible block nobody."""
        for queue in self._tenants.values():
            for sequence in queue:
                if eligible(sequence):
                    return sequence
        return None

    def take(self, sequence: Sequence) -> None:
        """Removes `sequence` and ends its tenant's turn."""
        self.remove(sequence)
        if sequence.request.tenant in self._tenants:
            self._tenants.move_to_end(sequence.request.tenant)
