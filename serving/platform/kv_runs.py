"""The sizes and the memory of runs, in which KV blocks cross from replica to replica."""

from __future__ import annotations

import contextlib
import mmap
import threading

from sealed_weights.secret_memory import wipe

# Small runs take little memory where no engine is busy: two or three of them are in use then.
RUN_BYTES = 1 << 20
# One pull has as much at either side: an engine that is busy copies all of it between two steps.
MEMORY_BYTES = 8 << 20
_LEAST_TOKENS = 64
_KEPT = 1  # memories that no pull uses: more at once are rare, and bring their pages in
_DONTDUMP = 16  # Linux's number, which not every version of Python names


def run_blocks(block_bytes: int, block_tokens: int) -> int:
    """Return the blocks of one run: of at least 64 tokens, and of 1 MiB where blocks are small."""
    return max(-(-_LEAST_TOKENS // block_tokens), RUN_BYTES // block_bytes)


class RunMemory:
    """The memory of one pull's runs: 8 MiB, or two runs where they are larger. One pull at a time, one thread.

    A run that was given back is the next one taken: a pull that never waits for its engine uses two or three, and no
    other page is ever brought in. Large pages: 8 MiB of fresh ones were written in 1.7 ms, those of 4 KiB in 7.2.
    """

    def __init__(self, run_bytes: int) -> None:
        count = max(2, MEMORY_BYTES // run_bytes)
        memory = mmap.mmap(-1, count * run_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for advice in (getattr(mmap, "MADV_HUGEPAGE", None), getattr(mmap, "MADV_DONTDUMP", _DONTDUMP)):
            with contextlib.suppress(OSError, ValueError):
                if advice is not None:
                    memory.madvise(advice)
        view, self.run_bytes = memoryview(memory), run_bytes
        self._runs = [view[place * run_bytes : (place + 1) * run_bytes] for place in reversed(range(count))]
        self._free, self._least = self._runs.copy(), count

    def take(self) -> memoryview | None:
        """Return the memory of a run, None where all is in use."""
        if not self._free:
            return None
        run = self._free.pop()
        self._least = min(self._least, len(self._free))
        return run

    def give(self, run: memoryview) -> None:
        """Take back the memory of a run that nothing reads or writes any more."""
        self._free.append(run)

    def wipe(self) -> None:
        """Overwrite with zeros all that was taken, and take it back."""
        for run in self._runs[self._least :]:
            wipe(run)
        self._free, self._least = self._runs.copy(), len(self._runs)


class RunMemories:
    """The memory of one side's pulls, of which a little is kept for the next: fresh pages are slow. Thread-safe."""

    def __init__(self) -> None:
        self._kept, self._lock = list[RunMemory](), threading.Lock()

    def take(self, run_bytes: int) -> RunMemory:
        """Return memory in runs of so many bytes, for one pull."""
        with self._lock:
            while self._kept:
                memory = self._kept.pop()
                if memory.run_bytes == run_bytes:
                    return memory
        return RunMemory(run_bytes)

    def give(self, memory: RunMemory) -> None:
        """Take back memory that was wiped, and that nothing reads or writes any more."""
        with self._lock:
            if len(self._kept) < _KEPT:
                self._kept.append(memory)
