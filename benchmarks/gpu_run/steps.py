"""Stage: whole steps, as `python -m benchmarks.serving.gpu` measures them; those of the table scaled to all layers."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.gpu_run import records
from benchmarks.gpu_run.predictions import STEPS
from benchmarks.gpu_run.stages import LAYERS, SECONDS
from benchmarks.gpu_timing import Cuda
from benchmarks.roofline import Card, StepShape, step_works
from benchmarks.serving import gpu
from benchmarks.serving.gpu_cases import StepCase, cases
from benchmarks.serving.gpu_model import llama_3_8b

WHOLE = llama_3_8b()
REPETITIONS = 48


def line_of(case: StepCase) -> str | None:
    """Return the line of the table that a case measures."""
    if case.sampled:
        return None
    return next((name for name, shape in STEPS.items() if _same(shape, case.shape)), None)


def _same(one: StepShape, other: StepShape) -> bool:
    return (one.contexts, one.chunks, len(one.ranks)) == (other.contexts, other.chunks, len(other.ranks))


def scaled_us(row: Mapping[str, Any], case: StepCase, card: Card) -> float:
    """Return the microseconds of a step of all layers from one of fewer: its head is counted once, at its limit."""
    us, layers = 1e3 * row["step_ms"], row["layers"]
    if layers == WHOLE.num_layers:
        return us
    head = 1e6 * step_works(WHOLE, case.shape)["head GEMM"].seconds(card.copy, card.flops)
    return (us - head) * WHOLE.num_layers / layers + head


def write_rows(bench: gpu.Bench, wanted: Iterable[StepCase], repetitions: int, deadline: float) -> list[dict[str, Any]]:
    """Measure cases and write each row, and its line of the table where it has one. Returns the rows."""
    wanted = list(wanted)
    card = Card(bench.card.name, bench.card.nominal, bench.copy, bench.card.flops)
    rows: list[dict[str, Any]] = []
    for case, row in zip(wanted, gpu.rows_of(bench, wanted, repetitions, deadline), strict=False):
        rows.append(row)
        records.emit({"record": "step", **row})
        line = line_of(case)
        if line is not None and "step_ms" in row:
            us = scaled_us(row, case, card)
            records.emit({"record": "line", "line": line, "us": us, "layers": row["layers"]})
    for missed in gpu.missed_bars(rows):
        records.emit({"record": "missed bar", "bar": missed})
    return rows


def main() -> int:
    """Measure for nine tenths of the stage's time; a missed bar is a result, not a failure."""
    from serving.runner.graphs import CudaGraphs

    deadline = time.monotonic() + 0.9 * float(os.environ.get(SECONDS, "900"))
    config, wanted = llama_3_8b(int(os.environ.get(LAYERS) or 32)), cases()
    bench = gpu.make_bench(config, Cuda(), wanted, REPETITIONS, CudaGraphs())
    rows = write_rows(bench, wanted, REPETITIONS, deadline)
    print(gpu.table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
