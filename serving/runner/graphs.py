"""Launches recorded once: what they cost the host is paid again by none of the steps that replay them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

# What a computation leaves: the tensors that every replay writes anew.
Outputs = tuple[torch.Tensor, ...]


class Graph(Protocol):
    """Recorded launches."""

    def replay(self) -> None:
        """Starts them again, on the same memory; nothing of the host's is read but what lies in that memory."""
        ...


class Graphs(Protocol):
    """Records computations that never run at the same time."""

    def record(self, compute: Callable[[], Outputs]) -> tuple[Graph, Outputs]:
        """Runs `compute` at least once. Its outputs belong to the graph: the next replay overwrites them."""
        ...


class CudaGraphs:
    """On the current CUDA device, in one pool of memory."""

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
