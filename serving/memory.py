"""Memory of the system: mapped on demand, returned with the last view; and how much of it there is."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path

LARGE_PAGE = 2 << 20


def mapped(nbytes: int) -> mmap.mmap:
    """Map at least `nbytes` of zeros, on large pages where the system has them.

    The length is rounded up to whole large pages, because the system would use small pages for the rest.
    """
    length = max(nbytes, 1) if nbytes < LARGE_PAGE else -(-nbytes // LARGE_PAGE) * LARGE_PAGE
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def available_bytes(root: Path = Path("/")) -> int:
    """Return the memory that this process may still take: the system's, or less where its control group has a limit.

    Pages of files that can be dropped count as available. 0 where the system does not tell.
    """
    found = [_system_bytes(root / "proc/meminfo"), *_group_bytes(root / "sys/fs/cgroup")]
    return min((size for size in found if size is not None), default=0)


def _system_bytes(meminfo: Path) -> int | None:
    for line in _lines(meminfo):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _group_bytes(folder: Path) -> list[int | None]:
    """Return what the control group at `folder` leaves, for version 2 and version 1."""
    versions = (
        (folder, "memory.max", "memory.current", "inactive_file "),
        (folder / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
    )
    out: list[int | None] = []
    for group, most, used, droppable in versions:
        limit, current = (_lines(group / name) for name in (most, used))
        if limit and current and limit[0].isdigit():
            cached = [int(line.split()[1]) for line in _lines(group / "memory.stat") if line.startswith(droppable)]
            out.append(max(0, int(limit[0]) - int(current[0]) + sum(cached)))
    return out


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
