"""What tests of C kernels share: which machine can run them, and C functions written for one test."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

import pytest

from lora_kernels.native import HEADERS, built_library

HAS_COMPILER = shutil.which(os.environ.get("CC") or "cc") is not None
# Asks for the compiler, not for the library: one that no longer compiles fails these tests.
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")


def compiled(folder: Path, source: str) -> ctypes.CDLL:
    """Compile `source` with OpenMP in `folder` and load it; it may include the public header of lora_kernels."""
    folder.joinpath("caller.c").write_text(source)
    with built_library(folder, "caller", HEADERS) as path:
        return ctypes.CDLL(str(path))
