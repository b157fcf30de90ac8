"""Buffers that can be wiped: Python's `bytes` cannot, so secrets live in bytearrays or in these mappings."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from functools import cache

Buffer = bytes | bytearray | memoryview

_ZEROS = bytes(1 << 20)
# Linux's numbers, which Python does not name in every version: see madvise(2).
_DONTDUMP, _WIPEONFORK = 16, 18


def wipe(buffer: bytearray | memoryview | mmap.mmap) -> None:
    """Overwrite a writable buffer of bytes with zeros, in place."""
    with memoryview(buffer) as view, view.cast("B") as flat:
        for start in range(0, len(flat), len(_ZEROS)):
            end = min(start + len(_ZEROS), len(flat))
            flat[start:end] = _ZEROS[: end - start]


class SecretBuffer:
    """`size` zeroed bytes outside the Python heap: never in a core dump or a forked child, locked in RAM if allowed.

    `locked` says whether the lock was granted (RLIMIT_MEMLOCK is often small); without it the pages may reach swap.
    """

    def __init__(self, size: int) -> None:
        """Map `size` bytes (> 0) of private anonymous memory."""
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.size = size
        for advice in (_DONTDUMP, _WIPEONFORK) if sys.platform == "linux" else ():
            with contextlib.suppress(OSError):
                self._map.madvise(advice)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # Locking brings every page in: 4.8 ms for 10 MB in pages of 4 KiB, 1.0 ms in pages of 2 MiB.
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self.locked = _call_on_map("mlock", self._map, size)
        self.view = memoryview(self._map)
        self._wiped = False

    def wipe(self) -> None:
        """Zero the memory and drop it. Views that others still hold read zeros; the pages go with the last of them."""
        if self._wiped:
            return
        self._wiped = True
        wipe(self._map)
        if self.locked:
            _call_on_map("munlock", self._map, self.size)
            self.locked = False
        # A BufferError means that a slice is still held: it keeps the (zeroed) mapping alive, which is safe.
        with contextlib.suppress(BufferError):
            self.view.release()
            self._map.close()


@cache
def _libc() -> ctypes.CDLL | None:
    try:
        # Already loaded: a confined process could open no file, and looking for one starts programs.
        return ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):  # Windows
        return None


def _call_on_map(name: str, mapping: mmap.mmap, size: int) -> bool:
    libc = _libc()
    if libc is None or not hasattr(libc, name):
        return False
    anchor = ctypes.c_char.from_buffer(mapping)
    try:
        return bool(getattr(libc, name)(ctypes.c_void_p(ctypes.addressof(anchor)), ctypes.c_size_t(size)) == 0)
    finally:
        del anchor
