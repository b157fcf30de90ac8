"""Graphs without a GPU: a computation's launches are recorded as the device would see them, and launched again.

Torch's operators are seen by a dispatch mode, Triton's kernels where the interpreter runs them. Each is kept with the
tensors and the numbers it was given, so that a replay repeats what a captured graph would: a number that the host has
baked into a launch stays as it was, and work that the host skipped is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import GridExecutor

ops = torch.ops.aten
# Where the host needs a value from the device, or gives it one that no recorded memory holds.
WAITS = (ops._local_scalar_dense, ops.nonzero, ops.masked_select, ops.lift_fresh, ops.lift_fresh_copy)


class HostTouched(AssertionError):
    """An operation that a CUDA graph cannot hold, or that a launch may not do."""


@dataclass
class RecordedGraph:
    """Launches in order."""

    launches: list[Callable[[], object]] = field(default_factory=list)

    def replay(self) -> None:
        for launch in self.launches:
            launch()


class RecordedGraphs:
    """`serving.runner.graphs.Graphs` on CPU tensors."""

    def __init__(self) -> None:
        self._warm = False

    def record(self, compute: Callable[[], object]) -> RecordedGraph:
        if not self._warm:  # as before a capture: what is set up once is not part of a graph
            compute()
        self._warm = True
        graph = RecordedGraph()
        with seeing(graph.launches.append):
            compute()
        return graph


@contextmanager
def seeing(launched: Callable[[Callable[[], object]], object]) -> Iterator[None]:
    """Calls `launched` with each launch, after it ran. Raises HostTouched where the host would wait for the device."""
    run = GridExecutor.__call__

    def kernel(grid: GridExecutor, *args: Any, **kwargs: Any) -> None:
        def launch() -> None:
            with _disable_current_modes():  # the interpreter's own tensors do not count
                run(grid, *args, **kwargs)

        launch()
        launched(launch)

    GridExecutor.__call__ = kernel
    try:
        with _Operators(launched):
            yield
    finally:
        GridExecutor.__call__ = run


class _Operators(TorchDispatchMode):
    def __init__(self, launched: Callable[[Callable[[], object]], object]) -> None:
        super().__init__()
        self._launched = launched

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        indexed_by_mask = func.overloadpacket in (ops.index, ops.index_put_) and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if func.overloadpacket in WAITS or indexed_by_mask:
            raise HostTouched(f"{func} waits for the device, or reads the host")
        out = func(*args, **kwargs)
        if func.is_view:
            return out
        mine = tree_leaves(out)

        def launch() -> None:
            for old, new in zip(mine, tree_leaves(func(*args, **kwargs)), strict=True):
                if new is not old:
                    old.copy_(new)

        self._launched(launch)
        return out
