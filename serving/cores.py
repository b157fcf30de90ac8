"""The processors that this process may use."""

from __future__ import annotations

import os


def available_cores() -> int:
    """How many: all of the machine's, or what a container or `taskset` left."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
