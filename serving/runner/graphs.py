"""CUDA graphs: launches are recorded once, and steps that replay them do not pay their cost on the host again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

# The results of a computation: every replay writes these tensors anew.
Outputs = tuple[torch.Tensor, ...]


class Graph(Protocol):
    """Recorded launches."""

    def replay(self) -> None:
        """Start the launches again on the same memory; kernels see new inputs only if they were written there."""
        ...


class Graphs(Protocol):
    """Records computations that never run at the same time."""

    def record(self, compute: Callable[[], Outputs]) -> tuple[Graph, Outputs]:
        """Run `compute` at least once and record it. Its outputs belong to the graph: each replay overwrites them."""
        ...


class CudaGraphs:
    """Records graphs on the current CUDA device, in one memory pool."""

    def __init__(self) -> None:
        self._first: torch.cuda.CUDAGraph | None = None

    def record(self, compute: Callable[[], Outputs]) -> tuple[Graph, Outputs]:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):  # compiles kernels and sets up cuBLAS outside the capture
                compute()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._first.pool() if self._first else None):
            outputs = compute()
        self._first = self._first or graph
        return graph, outputs
