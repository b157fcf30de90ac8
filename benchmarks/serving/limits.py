"""The machine's limits, measured in the same run: read bandwidth and the rate of matrix multiplication."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Limits:
    """read_gb_s: all threads streaming; gemm_gflop_s: by number of rows, in torch's fastest type on this machine."""

    read_gb_s: float
    gemm_gflop_s: dict[int, float]


def measure(threads: int, rows: tuple[int, ...] = (1, 4, 16, 32), repetitions: int = 5) -> Limits:
    """Measure both limits, which takes about ten seconds."""
    read = read_rate(threads, repetitions)
    rates = {}
    for count in rows:
        # Use 28 MB of weights in turn, so that they come from memory as a model's do.
        rates[count] = max(_gemm_rate(count, dtype, repetitions) for dtype in (torch.float32, torch.bfloat16))
    return Limits(read, rates)


def read_rate(threads: int, repetitions: int = 25) -> float:
    """Measure the read bandwidth in GB/s, which takes half a second."""
    torch.set_num_threads(threads)
    data = torch.ones(1 << 27)  # 512 MB: far beyond any cache
    data.sum()
    return data.numel() * 4 / statistics.median(_seconds(data.sum, repetitions)) / 1e9


def _gemm_rate(rows: int, dtype: torch.dtype, repetitions: int) -> float:
    weights = [torch.randn(1536, 576).to(dtype) for _ in range(32)]
    x = torch.randn(rows, 576).to(dtype)

    def multiply() -> None:
        for weight in weights:
            functional.linear(x, weight)

    multiply()
    seconds = statistics.median(_seconds(multiply, repetitions))
    return 2 * rows * 1536 * 576 * len(weights) / seconds / 1e9


def _seconds(work: Callable[[], object], repetitions: int) -> list[float]:
    out = []
    for _ in range(repetitions):
        began = time.perf_counter()
        work()
        out.append(time.perf_counter() - began)
    return out
