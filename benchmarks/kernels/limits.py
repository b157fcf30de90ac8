"""The machine's limits, measured in the same run: reading memory and multiplying matrices."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.kernels.grid import Point

# One size per cache level and one past them all; a working set is held against the size next above it.
WORKING_SETS = (256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
MATRIX = 1024


@dataclass(frozen=True)
class Limits:
    """bytes_per_second: reading a working set of so many bytes again and again; flops_per_second: matmul by type."""

    bytes_per_second: dict[int, float]
    flops_per_second: dict[str, float]

    def seconds(self, point: Point) -> float:
        """The least time `point` can take: its bytes or its operations, whichever bind.

        A type without hardware of its own is computed in float32, so the faster of the two rates counts.
        """
        size = point.weight_bytes + point.activation_bytes
        level = next((known for known in WORKING_SETS if known >= size), WORKING_SETS[-1])
        rates = [self.flops_per_second["float32"], self.flops_per_second[point.dtype]]
        return max(size / self.bytes_per_second[level], point.flops / max(rates))


def measure_limits() -> Limits:
    """Takes about two seconds."""
    reads = {}
    for size in WORKING_SETS:
        data = torch.ones(size // 4)
        reads[size] = size / _best(data.sum)
    rates = {}
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.randn(MATRIX, MATRIX).to(dtype)
        rates[str(dtype).removeprefix("torch.")] = 2 * MATRIX**3 / _best(partial(torch.mm, a, a))
    return Limits(reads, rates)


def _best(call: Callable[[], object], seconds: float = 0.15) -> float:
    """The fastest of as many calls as fit, at least two after a warm-up."""
    call()
    best, end, calls = float("inf"), time.perf_counter() + seconds, 0
    while calls < 2 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        calls += 1
    return best
