"""The processors that this process may use."""

from __future__ import annotations

import os


def available_cores() -> list[int]:
    """Their numbers, in order: all of the machine's, or those a container or `taskset` left."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cores_for(threads: int) -> list[int]:
    """One for each of so many threads where that takes all there are, else none: who shares a machine with other
    replicas leaves it to the system who computes where."""
    cores = available_cores()
    return cores if len(cores) == threads else []
