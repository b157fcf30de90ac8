"""Stage: the same steps twice give the same tokens: decode, prompts beside it, adapters, sampled rows."""

from __future__ import annotations

import sys

import torch

from benchmarks.gpu import records
from benchmarks.gpu.cases import Runner, StepCase, Traffic, drive
from benchmarks.gpu.model import llama_3_8b
from benchmarks.gpu.steps import Bench, make_bench
from benchmarks.gpu.timing import Cuda

LAYERS, STEPS = 4, 12
CASES = (
    StepCase(1),
    StepCase(32, adapters=32),
    StepCase(8, 2048, adapters=3),
    StepCase(16, prompt=512, adapters=8),
    StepCase(prompt=2048, adapters=1),
    StepCase(32, adapters=8, sampled=True),
)


def tokens_of(runner: Runner, case: StepCase, steps: int) -> list[list[int]]:
    """Return the tokens that every decoding sequence got, after driving the runner one step ahead."""
    traffic = Traffic(case, steps)
    drive(runner, traffic, steps)
    return [sequence.tokens[case.context :] for sequence in traffic.decoding]


def check(bench: Bench, wanted: tuple[StepCase, ...], steps: int) -> None:
    """Write a record per case. Raises AssertionError when tokens changed."""
    changing = []
    with torch.inference_mode():
        for case in wanted:
            first, second = (tokens_of(bench.runner, case, steps) for _ in range(2))
            rows = [row for row, (one, other) in enumerate(zip(first, second, strict=True)) if one != other]
            records.emit({"record": "steady", "case": case.name, "changing_rows": rows})
            changing += [f"{case.name}: rows {rows}"] * bool(rows)
    assert not changing, f"the same step gave other tokens: {'; '.join(changing)}"


def main() -> int:
    """Check a model of few layers."""
    from serving.runner.graphs import CudaGraphs

    check(make_bench(llama_3_8b(LAYERS), Cuda(), CASES, STEPS, CudaGraphs()), CASES, STEPS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
