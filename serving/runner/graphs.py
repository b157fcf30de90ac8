"""CUDA graphs: launches are recorded once, and steps that replay them do not pay their cost on the host again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch


class Graph(Protocol):
    """Recorded launches."""

    def replay(self) -> None:
        """Start the launches again on the same memory; kernels see new inputs only if they were written there."""
        ...


class Graphs(Protocol):
    """Records computations that never run at the same time."""

    def record(self, compute: Callable[[], object]) -> Graph:
        """Run `compute` at least once and record it. Its results must be in memory that the caller keeps: what
        `compute` allocates is shared by all graphs."""
        ...


class CudaGraphs:
    """Records graphs on the current CUDA device, in one memory pool.

    All are warmed up and captured on one stream: cuBLAS keeps a workspace of 32 MiB for each stream that it has seen.
    """

    def __init__(self) -> None:
        self._first: torch.cuda.CUDAGraph | None = None
        self._stream: torch.cuda.Stream | None = None

    def record(self, compute: Callable[[], object]) -> Graph:
        aside = self._stream = self._stream or torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):  # compiles kernels and sets up cuBLAS outside the capture
                compute()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._first.pool() if self._first else None, stream=aside):
            compute()
        self._first = self._first or graph
        return graph
