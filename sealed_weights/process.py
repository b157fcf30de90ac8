"""Settings of a process that holds keys or weights: a crash writes no core file, and other processes cannot read it."""

from __future__ import annotations

import contextlib
import ctypes
import sys

_PR_GET_DUMPABLE = 3
_PR_SET_DUMPABLE = 4


def keep_memory_private() -> None:
    """Make this process, and those it forks, leave no memory behind: call it first, before any secret is read.

    The limit of core files becomes 0, for good. On Linux the process is also not dumpable: handlers that core files are
    piped to get nothing, and other processes of the same user, debuggers among them, can neither attach to it nor read
    its memory or environment. A program that it executes starts dumpable again. Idempotent. Elsewhere each part is set
    where the system has it.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def is_dumpable() -> bool:
    """Return whether core files and other processes may read this process (Linux alone; True elsewhere)."""
    return sys.platform != "linux" or ctypes.CDLL(None).prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 0
