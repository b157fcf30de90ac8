"""Host memory in frames of one KV block each."""

from __future__ import annotations

from collections.abc import Callable

from sealed_weights.secret_memory import wipe

# Allocates at least so many bytes of writable host memory.
Allocate = Callable[[int], memoryview]

_ALIGNED = 4096


class Frames:
    """`count` frames of `size` bytes, each on a page of its own. Engine thread only."""

    def __init__(self, count: int, size: int, allocate: Allocate) -> None:
        self.count, self.size = count, size
        self._stride = -(-size // _ALIGNED) * _ALIGNED
        self._memory = allocate(count * self._stride)
        self._free = list(range(count - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """Return the number of a free frame. Raises IndexError without any."""
        return self._free.pop()

    def give(self, frame: int) -> None:
        self._free.append(frame)

    def view(self, frame: int) -> memoryview:
        return self._memory[frame * self._stride : frame * self._stride + self.size]

    def wipe(self, frames: list[int] | None = None) -> None:
        """Zero these frames; None: all that are free."""
        for frame in self._free if frames is None else frames:
            wipe(self.view(frame))
