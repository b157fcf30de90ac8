"""Host memory below a GPU's block pool: a frame for each block, copied by the device while the host goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from serving.block_copies import Ended, Source, wait_for
from serving.kv.content import Content, Owners
from serving.kv.frames import Allocate, Frames
from serving.kv.stores import Finished

# A PCIe link of the slower kind, until the scheduler has measured the first copies.
_TYPICAL_RATE = 2e10
# Blocks on their way to one side at once: the copies of one step do not hold up the next for long.
_MOST_COPIES = 64


class HostStore:
    """`serving.kv.stores.BlockStore` in host memory: what is here is as plain as in the pool, and as private.

    allocate: pinned memory, where a device is to copy by itself
    """

    name = "host"
    parallel = 1

    def __init__(self, slots: int, block_bytes: int, allocate: Allocate) -> None:
        self.slots, self.block_bytes = slots, block_bytes
        self.typical_seconds = block_bytes / _TYPICAL_RATE
        self.on_arrival: Callable[[], None] = lambda: None
        self._frames = Frames(slots, block_bytes, allocate)
        self._contents: dict[int, Content] = {}
        self._forgotten: set[int] = set()
        self._saving: list[tuple[Ended, int]] = []
        self._done: deque[Finished] = deque()
        self._lent: set[int] = set()

    @property
    def takes_saves(self) -> bool:
        return len(self._saving) < _MOST_COPIES

    @property
    def takes_loads(self) -> bool:
        return len(self._lent) < _MOST_COPIES

    def save(self, slot: int, content: Content, source: Source) -> bool:
        """Have a block copied here."""
        self._contents[slot] = content
        ended = source(self._frames.view(slot))
        if ended is None:
            self._done.append(Finished(slot, True))
        else:
            self._saving.append((ended, slot))
        return True

    def load(self, slot: int, content: Content) -> None:
        """Lend a block: its data is here already."""
        self._lent.add(slot)
        self._done.append(Finished(slot, True, self.typical_seconds, self._frames.view(slot)))
        self.on_arrival()

    def poll(self) -> list[Finished]:
        """Return the copies that ended since the last call."""
        waiting, self._saving = self._saving, []
        for ended, slot in waiting:
            if ended():
                self._done.append(Finished(slot, True))
            else:
                self._saving.append((ended, slot))
        out = list(self._done)
        self._done.clear()
        return out

    def release(self, slot: int) -> None:
        """Note that the block was copied from here."""
        self._lent.remove(slot)

    def source(self, slot: int) -> Source:
        """Return the copy by which a lower level takes a block over."""

        def copy(out: memoryview) -> None:
            out[:] = self._frames.view(slot)

        return copy

    def drop(self, slot: int) -> None:
        """Empty a slot; what a forgotten adapter wrote is zeroed."""
        del self._contents[slot]
        if slot in self._forgotten:
            self._forgotten.remove(slot)
            self._frames.wipe([slot])

    def forget(self, owners: Owners) -> None:
        """Zero what is of these owners: now, or when the copy of it that runs has ended."""
        self._forgotten |= {slot for slot, content in self._contents.items() if owners(content.owner)}

    def close(self) -> None:
        """Wait for the copies that run, and zero everything."""
        wait_for(ended for ended, _ in self._saving)
        self._frames.wipe(list(range(self.slots)))
