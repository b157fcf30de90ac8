"""The contract of a memory level below the block pool: `spill.DiskStore`, `host.HostStore`, and simulated ones in the
tests. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from serving.block_copies import Source
from serving.kv.content import Content, Owners


@dataclass(frozen=True, slots=True)
class Finished:
    """A copy that has ended, for better or worse.

    data: what a load has brought, until `BlockStore.release`; None for a save, and for a load that failed
    ok: whether the slot holds the block, and for a load, whether `data` is the block
    seconds: the time of the copy alone, without waiting for a worker
    """

    slot: int
    ok: bool
    seconds: float = 0.0
    data: memoryview | None = None


class BlockStore(Protocol):
    """One level: `slots` places for a block each. Engine thread only, and no method waits for a device.

    A slot is in one state: empty, being saved, saved, being loaded. `Finished` ends "being": the caller begins nothing
    with a slot before.

    name: the label of metrics
    block_bytes: of one block
    parallel: copies that run at once
    typical_seconds: of one load, until the first are measured
    on_arrival: called from any thread when a copy has ended; `poll` then tells
    """

    name: str
    slots: int
    block_bytes: int
    parallel: int
    typical_seconds: float
    on_arrival: Callable[[], None]

    @property
    def takes_saves(self) -> bool:
        """Whether another save can begin now. A level that is busy takes none: nothing ever waits to be saved."""
        ...

    @property
    def takes_loads(self) -> bool:
        """Whether another load can begin now."""
        ...

    def save(self, slot: int, content: Content, source: Source) -> bool:
        """Begin to save a block. False: the level has no means to keep it from its owner's eyes; nothing was begun."""
        ...

    def load(self, slot: int, content: Content) -> None:
        """Begin to load a saved block."""
        ...

    def poll(self) -> list[Finished]:
        """Return the copies that ended since the last call."""
        ...

    def release(self, slot: int) -> None:
        """Give back the `data` of a load."""
        ...

    def source(self, slot: int) -> Source | None:
        """Return how a lower level copies a saved block from here at once; None where that would need a load."""
        ...

    def drop(self, slot: int) -> None:
        """Empty a slot that is saved."""
        ...

    def forget(self, owners: Owners) -> None:
        """Make everything of these owners unreadable now, copies on their way included."""
        ...

    def close(self) -> None:
        """Wait for copies that run; make everything unreadable."""
        ...
