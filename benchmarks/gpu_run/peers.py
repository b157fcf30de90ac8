"""Stage: the LoRA kernels beside vLLM's and SGLang's, in the same graphs, on the quick points of the grid."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict

from benchmarks.gpu_run import records
from benchmarks.gpu_run.stages import SECONDS, WRONG
from benchmarks.gpu_timing import Cuda
from benchmarks.kernels.gpu import NOTES, Measured, measure, promise_lines, promises
from benchmarks.kernels.gpu_grid import GpuPoint, points
from benchmarks.kernels.gpu_prefill import measure_prefill

SEED = 0


def measure_all(
    wanted: Iterable[GpuPoint], one: Callable[[GpuPoint], Measured], deadline: float
) -> tuple[list[Measured], int]:
    """Write a record per point until the deadline. Returns the results, and at how many points ours was wrong."""
    results: list[Measured] = []
    wrong = 0
    for point in wanted:
        if time.monotonic() > deadline:
            break
        try:
            results.append(one(point))
        except RuntimeError as error:
            wrong += 1
            records.emit({"record": "wrong", "point": asdict(point), "problem": str(error)[:500]})
            continue
        records.emit({"record": "peers", **asdict(results[-1])})
    return results, wrong


def main() -> int:
    """Return `WRONG` when a result of ours was wrong somewhere."""
    deadline = time.monotonic() + 0.8 * float(os.environ.get(SECONDS, "600"))
    records.emit({"record": "notes", **NOTES})
    bandwidth = Cuda().copy_bytes_per_second()
    results, wrong = measure_all(points(quick=True), lambda point: measure(point, SEED, bandwidth), deadline)
    prefill = None
    if time.monotonic() < deadline:
        prefill = measure_prefill(SEED)
        records.emit({"record": "prefill", **asdict(prefill)})
    print(promise_lines(promises(results, prefill)))
    return WRONG * (wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
