"""Memory mapped from the system: pages are provided when first written and returned with the last view."""

from __future__ import annotations

import contextlib
import mmap

LARGE_PAGE = 2 << 20


def mapped(nbytes: int) -> mmap.mmap:
    """Map at least `nbytes` of zeros, on large pages where the system has them.

    The length is rounded up to whole large pages, because the system would use small pages for the rest.
    """
    length = max(nbytes, 1) if nbytes < LARGE_PAGE else -(-nbytes // LARGE_PAGE) * LARGE_PAGE
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
