"""Load the C library and mirror its structures. Calls release the GIL."""

from __future__ import annotations

import ctypes
import functools
import logging
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from lora_kernels.cpu.build import built_library
from lora_kernels.errors import BackendError

log = logging.getLogger("lora_kernels")

# Fastest first; avx512 covers bfloat16 and 8-bit weights and leaves the rest to avx2.
INSTRUCTION_SETS = ("avx512", "avx2", "portable")
_DISAGREED = -2


class CSite(ctypes.Structure):
    """`lk_site` of sgmv.h."""

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("page_table", ctypes.c_void_p),
        ("page_ranks", ctypes.c_void_p),
        ("page_scales", ctypes.c_void_p),
        ("live", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("b_offsets", ctypes.c_void_p),
        ("rank_scales", ctypes.c_void_p),
        ("k", ctypes.c_int64),
        ("padded_k", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("padded_n", ctypes.c_int64),
        ("slices", ctypes.c_int64),
        ("page_size", ctypes.c_int64),
        ("max_pages", ctypes.c_int64),
        ("a_page", ctypes.c_int64),
        ("b_page", ctypes.c_int64),
        ("dtype", ctypes.c_int64),
    )


class CBatch(ctypes.Structure):
    """`lk_batch` of sgmv.h."""

    _fields_ = (
        ("row_order", ctypes.c_void_p),
        ("segment_starts", ctypes.c_void_p),
        ("segment_slots", ctypes.c_void_p),
        ("segments", ctypes.c_int64),
    )


# `lk_call` of sgmv.h as bytes: site, batch, y and x (address, row stride, dtype), threads.
pack_call = struct.Struct("=9q").pack
# `lk_matrix` of sgmv.h as bytes: rows, columns, the strides of both, the copy's units and width of blocks, both dtypes,
# whether ranks become pairs.
pack_matrix = struct.Struct("=9q").pack


class Library:
    """The loaded library. `shrink`, `expand` and `scratch_bytes` take the arguments of lk_shrink and so on; `apply`
    takes what `pack_call` makes, `copy` what `pack_matrix` makes, two arrays of addresses and their length."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        self.apply = handle.lk_apply
        self.apply.argtypes = (ctypes.c_char_p,)
        self.shrink = handle.lk_shrink
        self.expand = handle.lk_expand
        for function in (self.shrink, self.expand):
            function.argtypes = (pointer, pointer, *(pointer, integer, integer) * 2, ctypes.c_int)
        self.copy = handle.lk_copy
        self.copy.argtypes = (ctypes.c_char_p, pointer, pointer, integer)
        self.copy.restype = None
        self.scratch_bytes = handle.lk_scratch_bytes
        self.scratch_bytes.argtypes = (pointer, integer, ctypes.c_int)
        self.scratch_bytes.restype = integer
        self._use = handle.lk_use
        self._use.argtypes = (ctypes.c_char_p,)
        self.instruction_set = next(name for name in INSTRUCTION_SETS if self.use(name))

    def use(self, name: str) -> bool:
        """Switch to one instruction set for the whole process; False where it does not run right on this processor."""
        status = self._use(name.encode())
        if status == _DISAGREED:
            log.warning("CPU kernels: %s gives wrong results on this processor and is not used", name)
        if status == 0:
            self.instruction_set = name
        return bool(status == 0)

    @contextmanager
    def using(self, name: str) -> Iterator[None]:
        """Another instruction set for the length of a block. Raises BackendError where it does not run."""
        before = self.instruction_set
        try:
            if not self.use(name):
                raise BackendError(f"instruction set {name!r} does not run here")
            yield
        finally:
            self.use(before)


@functools.cache
def load_library() -> Library | None:
    """The library, compiled if need be; None, with one log line saying why, where that fails."""
    try:
        with built_library() as path:
            # Global: libraries that are loaded later find the functions of sgmv.h in it (native.py).
            library = Library(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL))
    except (BackendError, OSError) as error:
        log.warning("CPU kernels are not available, falling back to slower torch operations: %s", error)
        return None
    log.info("CPU kernels: %s", library.instruction_set)
    return library
