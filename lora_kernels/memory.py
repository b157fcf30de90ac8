"""Memory that costs nothing until it is written, and goes back to the system in part. Public, for other caches."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
from collections.abc import Iterable, Iterator

import torch

# Linux's numbers, which Python does not name, or not in every version: see madvise(2) and mlock2(2).
_DONTDUMP, _WIPEONFORK, _DONTNEED_LOCKED = 16, 18, 24
_ON_FAULT = 1


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros; on a CPU the system provides a page of memory only when it is first written.

    torch.zeros writes them all: a pool of 1 GiB took 0.5 s and all its memory at start.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # 16 adapters of rank 16 are 40,000 pages of 4 KiB: finding them took a fifth of the kernels' time.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def give_back(address: int, length: int) -> None:
    """Return whole system pages within private anonymous memory (`lazy_zeros` on a CPU); they read as zeros after.

    address, length: in bytes; parts of a system page at either end are kept.
    """
    begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + length) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > begin and hasattr(mmap, "MADV_DONTNEED"):
        # Python's own madvise belongs to the mapping object, which torch holds out of reach.
        memory = ctypes.c_void_p(begin), ctypes.c_size_t(end - begin)
        library = _c_library()
        if not library.madvise(*memory, mmap.MADV_DONTNEED) or not library.madvise(*memory, _DONTNEED_LOCKED):
            return
        # Locked, on a system before Linux 5.18.
        library.munlock(*memory)
        library.madvise(*memory, mmap.MADV_DONTNEED)
        library.mlock2(*memory, _ON_FAULT)


def keep_private(memory: torch.Tensor) -> bool:
    """Keep what `lazy_zeros` returned on a CPU out of core dumps, of forked children and, if allowed, of swap.

    Returns whether it cannot reach swap: RLIMIT_MEMLOCK has to allow the whole size. Pages still cost nothing until
    they are written; each is locked then.
    """
    library = _c_library()
    whole = ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(memory.untyped_storage().nbytes())
    for advice in (_DONTDUMP, _WIPEONFORK):
        if hasattr(library, "madvise"):
            library.madvise(*whole, advice)
    return hasattr(library, "mlock2") and library.mlock2(*whole, _ON_FAULT) == 0


def runs(pages: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield adjacent ascending pages as (first, end): a slice needs no index tensor, so no copy to a device."""
    first = end = -1
    for page in pages:
        if page != end:
            if end > first:
                yield first, end
            first = page
        end = page + 1
    if end > first:
        yield first, end


@functools.cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)
