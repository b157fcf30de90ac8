"""The CPU cores that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def available_cores(root: Path = Path("/")) -> int:
    """Return how many cores `taskset`, the container and its CPU quota leave of the machine's; at least 1.

    A quota of one core and a half counts as one: threads that wait for each other lose more to throttling than half a
    core gives.

    root: the folder that contains /proc and /sys
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *map(int, _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """Yield the quota, in cores, of this process's control group and of each above it (cgroups(7), both versions)."""
    try:
        memberships = (root / "proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return  # no control groups here
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        group = mount / path.lstrip("/")
        # In a container the path may be the host's. Then only the mount itself exists, and it is the container's group.
        for place in (group, *group.parents):
            if (quota := _quota(place)) is not None:
                yield quota
            if place == mount:
                break


def _quota(group: Path) -> float | None:
    """Return the quota of one group, None if it has none."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period"))
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None  # not a group with a quota ("max", -1), or one that this process may not read
