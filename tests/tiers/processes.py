"""The processor time of living processes, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def descendants_seconds(process: int) -> float:
    """Return the processor seconds of all living descendants, with what their own ended children took."""
    total, waiting = 0.0, _children(process)
    while waiting:
        child = waiting.pop()
        try:
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile: its parent has its time
        total += sum(int(field) for field in fields[11:15])
        waiting += _children(child)
    return total / _TICKS


def _children(process: int) -> list[int]:
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{process}/task")
    except OSError:
        return found
    for task in tasks:
        try:
            found += map(int, Path(f"/proc/{process}/task/{task}/children").read_text().split())
        except OSError:
            continue
    return found
