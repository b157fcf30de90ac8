"""C functions written for one test: callers of the native libraries from inside teams of threads."""

from __future__ import annotations

import ctypes
from pathlib import Path

from lora_kernels.native import HEADERS, built_library


def compiled(folder: Path, source: str) -> ctypes.CDLL:
    """Compile `source` with OpenMP in `folder` and load it; it may include the public header of lora_kernels."""
    folder.joinpath("caller.c").write_text(source)
    with built_library(folder, "caller", HEADERS) as path:
        return ctypes.CDLL(str(path))
