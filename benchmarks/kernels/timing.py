"""Medians of interleaved samples: every contender meets the machine's good and bad moments alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

# A sample shorter than this is mostly clock and chance; a contender's calls are repeated until it is that long.
SAMPLE_SECONDS = 0.4e-3
MOST_CALLS = 64
SAMPLES = 9
# A contender this many times slower than the fastest is measured once more and no further: its exact figure is idle.
HOPELESS = 25
# Seconds one contender may take at one point.
CONTENDER_SECONDS = 0.6


def interleaved_medians(calls: dict[str, Callable[[], object]], samples: int = SAMPLES) -> dict[str, float]:
    """Seconds per call of each, the caches warm as its own calls leave them."""
    first = {}
    for name, call in calls.items():
        call()
        first[name] = _sample(call, 1)
    fastest = min(first.values())
    repeats = {name: max(1, min(MOST_CALLS, int(SAMPLE_SECONDS / seconds))) for name, seconds in first.items()}
    wanted = {
        name: 1
        if seconds > HOPELESS * fastest
        else max(3, min(samples, int(CONTENDER_SECONDS * samples / SAMPLES / (seconds * (repeats[name] + 1)))))
        for name, seconds in first.items()
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(samples):
        for name, call in calls.items():
            if round_ < wanted[name]:
                call()
                taken[name].append(_sample(call, repeats[name]))
    return {name: statistics.median(values) for name, values in taken.items()}


def _sample(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats
