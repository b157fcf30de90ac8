"""From time stamps of requests to the figures of one cell. Standard library only."""

from __future__ import annotations

import os
import statistics
import threading
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Record:
    """One request as its client saw it, times in seconds on one clock; `tokens` are the arrivals of output tokens."""

    start: float
    prompt_tokens: int
    tokens: list[float] = field(default_factory=list)
    error: str | None = None


def percentile(values: list[float], share: float) -> float | None:
    """Return the percentile `share`, interpolated linearly between order statistics; None for an empty list."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarise(records: list[Record], wall: float) -> dict[str, float | int | None]:
    """Return the throughput of a whole cell, and its TTFT and ITL in milliseconds."""
    good = [record for record in records if record.error is None and record.tokens]
    gaps = [b - a for r in good for a, b in zip(r.tokens, r.tokens[1:], strict=False)]
    first = [r.tokens[0] - r.start for r in good]

    def ms(value: float | None) -> float | None:
        return None if value is None else round(value * 1e3, 2)

    return {
        "requests": len(records),
        "errors": len(records) - len(good),
        "wall_s": round(wall, 3),
        "prompt_tokens_per_s": round(sum(r.prompt_tokens for r in good) / wall, 2),
        "output_tokens_per_s": round(sum(len(r.tokens) for r in good) / wall, 2),
        "ttft_p50_ms": ms(percentile(first, 0.5)),
        "ttft_p95_ms": ms(percentile(first, 0.95)),
        "itl_p50_ms": ms(percentile(gaps, 0.5)),
        "itl_p99_ms": ms(percentile(gaps, 0.99)),
    }


def median(cells: list[dict[str, float]], name: str) -> float | None:
    """Return the median of one figure over repetitions, None where it was never measured."""
    values = [cell[name] for cell in cells if cell.get(name) is not None]
    return statistics.median(values) if values else None


def tree_memory_mb(pid: int) -> float:
    """Return the proportional resident memory of a process tree in MB (10^6 bytes), 0 when it has ended."""
    todo = [pid]
    total = 0
    while todo:
        process = todo.pop()
        try:
            for task in os.listdir(f"/proc/{process}/task"):
                todo += map(int, Path(f"/proc/{process}/task/{task}/children").read_text().split())
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / 1e6


class PeakMemory:
    """Peak of `tree_memory_mb`, sampled by a background thread every two seconds, because one sample takes 4 ms."""

    def __init__(self, pid: int) -> None:
        self.peak = 0.0
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.wait(2):
            self.peak = max(self.peak, tree_memory_mb(self._pid))

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, tree_memory_mb(self._pid))
