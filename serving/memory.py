"""Memory straight from the system: it comes when it is first written, and goes back with its last view."""

from __future__ import annotations

import contextlib
import mmap

LARGE_PAGE = 2 << 20


def mapped(nbytes: int) -> mmap.mmap:
    """At least `nbytes` zeros, on large pages where the system gives them: whole ones, or it leaves the end out."""
    length = max(nbytes, 1) if nbytes < LARGE_PAGE else -(-nbytes // LARGE_PAGE) * LARGE_PAGE
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
