"""Triton, or where it is not installed a stand-in, with which the operations' files import for their references.

The CPU build of torch brings no Triton. Nothing is launched there: `choose_backend` asks first.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

try:
    import triton
    import triton.language as tl
except ImportError:
    triton: Any = SimpleNamespace(jit=lambda kernel=None, **options: kernel or (lambda decorated: decorated))  # type: ignore[no-redef]
    tl: Any = None  # type: ignore[no-redef]

__all__ = ["tl", "triton"]
