"""Times calls on a GPU: in a captured graph, over enough layers that weights are cold, the second-level cache flushed.

`Device` is the seam for tests: `Cuda` measures, and a test's own class runs each call once on a CPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Protocol

import torch

REPLAYS = 15
# Twice the largest second-level cache in use (H200: 50 MB, B200: 126 MB).
FLUSH_BYTES = 256 * 2**20
COPY_BYTES = 2 * 2**30
# Bytes of weights, or of K and V, that layers use in turn, so that none is found in the second-level cache.
COLD_BYTES = 512 << 20
MOST_LAYERS = 32


class Device(Protocol):
    """Where a benchmark's tensors are, and how its calls are timed."""

    device: torch.device
    dtype: torch.dtype
    interpreted: bool

    def seconds(self, call: Callable[[int], object], layers: int) -> float:
        """Return the seconds a layer of `call(layer)` for every layer."""

    def copy_bytes_per_second(self) -> float:
        """Return the bandwidth of a large copy, reads and writes counted."""


class Cuda:
    """The first CUDA device."""

    device = torch.device("cuda")
    dtype = torch.bfloat16
    interpreted = False

    def seconds(self, call: Callable[[int], object], layers: int) -> float:
        """Return the median seconds a layer, in a CUDA graph of all layers."""
        return graph_seconds(call, layers)

    def copy_bytes_per_second(self) -> float:
        """Return the median over replays of a copy of 2 GiB, whose memory is free again."""
        seconds = _copy_seconds(self.device)
        torch.cuda.empty_cache()
        return 2 * COPY_BYTES / seconds


def _copy_seconds(device: torch.device) -> float:
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source)
    return graph_seconds(lambda _: target.copy_(source), 1)


def cold_layers(device: torch.device, layer_bytes: float) -> int:
    """Return how many layers of that size to measure together; two where nothing is timed."""
    return int(max(2, min(MOST_LAYERS, -(-COLD_BYTES // layer_bytes)))) if device.type == "cuda" else 2


def normal(device: Device, *shape: int) -> torch.Tensor:
    """Return small random values on the device, in its type."""
    return torch.empty(shape, device=device.device, dtype=device.dtype).normal_(0, 0.02)


def graph_seconds(call: Callable[[int], object], layers: int) -> float:
    """Return the median seconds a layer, in a CUDA graph of all layers, weights cold.

    The cache is flushed by reading: lines that a flush had written would go to memory while the clock runs.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            for layer in range(layers):
                call(layer)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for layer in range(layers):
                call(layer)
        flush = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        total = torch.empty((), dtype=torch.int64, device="cuda")
        times = []
        for _ in range(REPLAYS):
            torch.sum(flush, 0, out=total)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(stream)
            graph.replay()
            end.record(stream)
            stream.synchronize()
            times.append(begin.elapsed_time(end) / 1e3 / layers)
    return statistics.median(times)
