"""Whether this system lets a process of ours lock memory in RAM."""

from __future__ import annotations

import ctypes
import mmap

_ON_FAULT = 1  # MLOCK_ONFAULT of mlock2(2): nothing is locked before it is written, so that trying takes no memory


def can_lock(size: int) -> bool:
    """Return whether `size` bytes may be locked in RAM, by trying it."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mlock2"):
        return False
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError):
        return False
    first = ctypes.c_char.from_buffer(memory)
    locked = library.mlock2(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), _ON_FAULT) == 0
    del first
    memory.close()
    return bool(locked)
