"""Build and load the C library, and choose its instruction set. Calls release the GIL."""

from __future__ import annotations

import ctypes
import functools
import logging
from pathlib import Path

from lora_kernels import BackendError
from lora_kernels.native import HEADERS, built_library
from lora_kernels.native import load_library as load_lora_library

log = logging.getLogger(__name__)

# Fastest first.
INSTRUCTION_SETS = ("avx512", "avx2", "portable")
SOURCE_FOLDER = Path(__file__).parent / "cpu"
_DISAGREED = -2


class KernelLibrary:
    """The loaded library; `handle` has every function of linear.h, pack.h and forward.h."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        self.handle = handle
        for name in ("sk_linear_use", "sk_forward_use"):
            getattr(handle, name).argtypes = (ctypes.c_char_p,)
        self.instruction_set = next(name for name in INSTRUCTION_SETS if self.use(name))

    def use(self, name: str) -> bool:
        """Switch the whole process to one instruction set; return False if it does not run correctly on this processor.

        Do not call this while a step runs.
        """
        statuses = [self.handle.sk_linear_use(name.encode()), self.handle.sk_forward_use(name.encode())]
        if _DISAGREED in statuses:
            log.warning("CPU kernels: %s gives wrong results on this processor and is not used", name)
        if any(statuses):
            return False
        self.instruction_set = name
        return True


@functools.cache
def load_library() -> KernelLibrary | None:
    """Return the library, compiled if needed, or None after a log line that says why that failed."""
    if load_lora_library() is None:
        return None  # load_lora_library has logged the reason
    try:
        with built_library(SOURCE_FOLDER, "serving", HEADERS) as path:
            library = KernelLibrary(ctypes.CDLL(str(path)))
    except (BackendError, OSError) as error:
        log.warning("no CPU kernels, the forward pass runs in plain torch, several times slower: %s", error)
        return None
    log.info("CPU kernels: %s", library.instruction_set)
    return library
