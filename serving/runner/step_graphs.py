"""The recorded graphs of a runner: which steps share one, and their recording with progress."""

from __future__ import annotations

import bisect
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from serving.runner.graphs import Graph, Graphs

log = logging.getLogger(__name__)

# Rows of steps that hold single tokens alone. Above the largest, the graphs of mixed steps serve.
DECODE_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# Rows of steps that hold chunks: from each bound to the next, multiples of the step. Up to about 256 rows a product
# takes as long as its weights take to read; above, it takes as long as its rows, padding included: at most an eighth
# from 1,024 rows on, where a step takes 20 ms or more for an 8B model (predicted: 2 · 8e9 · 1,024 operations at 700
# TFLOP/s), and a fifth between 257 and 1,024. Tensor-core tiles of 128 rows pad as much by themselves.
MIXED_STEPS: tuple[tuple[int, int], ...] = ((0, 32), (256, 64), (512, 128), (2048, 256), (4096, 512))

_PROGRESS_SECONDS = 5.0


class Shape(NamedTuple):
    """The steps that share a graph: rows with padding, whether there are chunks, whether any row has an adapter."""

    rows: int
    mixes: bool
    adapted: bool


def decode_rows(max_samples: int) -> list[int]:
    """Return the numbers of rows, ascending, of decode graphs for up to `max_samples` sequences."""
    largest = min(max_samples, DECODE_ROWS[-1])
    return [*(rows for rows in DECODE_ROWS if rows < largest), largest]


def mixed_rows(max_rows: int) -> list[int]:
    """Return the numbers of rows, ascending, of graphs for steps of up to `max_rows` rows that hold chunks."""
    out: list[int] = []
    ends = [begin for begin, _ in MIXED_STEPS[1:]] + [max_rows]
    for (begin, step), end in zip(MIXED_STEPS, ends, strict=True):
        out += range(begin + step, min(end, max_rows) + 1, step)
    return [*(rows for rows in out if rows < max_rows), max_rows]


class StepGraphs:
    """One graph for each `Shape` of steps of up to `max_rows` rows of `max_samples` sequences; none at first."""

    def __init__(self, max_rows: int, max_samples: int) -> None:
        self._rows = {False: decode_rows(max_samples), True: mixed_rows(max_rows)}
        self._graphs: dict[Shape, Graph] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def shapes(self) -> list[Shape]:
        """Return every shape, the largest first: smaller ones find room in the memory that it left in the pool."""
        found = [Shape(n, mixes, adapted) for mixes, of in self._rows.items() for n in of for adapted in (False, True)]
        return sorted(found, reverse=True)

    def shape_of(self, rows: int, *, mixes: bool, adapted: bool) -> Shape:
        """Return the smallest recorded shape for a step; one of just as many rows where there is none."""
        for chunks in (mixes, True):
            of = self._rows[chunks]
            place = bisect.bisect_left(of, rows)
            if place < len(of) and (shape := Shape(of[place], chunks, adapted)) in self._graphs:
                return shape
        return Shape(rows, mixes or rows > self._rows[False][-1], adapted)

    def find(self, shape: Shape) -> Graph | None:
        """Return the graph of a shape, None where none was recorded."""
        return self._graphs.get(shape)

    def record(self, graphs: Graphs, prepare: Callable[[Shape], Callable[[], object]]) -> None:
        """Record every shape. `prepare` uploads such a step and returns its forward pass."""
        began = told = time.monotonic()
        before = _used_bytes()
        shapes = self.shapes()
        for done, shape in enumerate(shapes):
            if time.monotonic() - told >= _PROGRESS_SECONDS:
                told = time.monotonic()
                log.info("recorded %d of %d graphs", done, len(shapes))
            self._graphs[shape] = graphs.record(prepare(shape))
        log.info(
            "recorded %d graphs of steps in %.1f s, %d MiB",
            len(shapes),
            time.monotonic() - began,
            (_used_bytes() - before) >> 20,
        )


def _used_bytes() -> int:
    """Return the memory in use on the current GPU, 0 without one."""
    if not torch.cuda.is_available():
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free
