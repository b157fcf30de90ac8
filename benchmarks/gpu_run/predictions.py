"""Predicted times, computed from bytes, operations and launches: no figure here was measured on a GPU.

    predicted = floor + max(bytes / copy bandwidth, operations / peak rate) / reach

`REACH` is the share of its limit that a kernel of a kind is expected to attain, and `FLOOR_US` what launching and
draining it costs inside a graph. docs/gpu.md shows the table and says where the factors come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.roofline import Card, StepShape, Work, layer_works, step_works
from serving.models.config import ModelConfig

# Expected before any measurement, from the compiled code and from what others publish of such kernels:
# cuBLAS near its limit; small kernels bound by their launch; attention of tokens at four fifths with two buffers of K
# and V; attention of prompts at 225 of 989 TFLOP/s with 16-row MMA; a GEMM of thousands of rows at 650 of them, where
# the card's power is the limit; LoRA launched ahead of its producer's end.
REACH = {"GEMM": 0.93, "large GEMM": 0.66, "small": 0.93, "tokens": 0.80, "chunks": 225 / 989, "LoRA": 0.90}
FLOOR_US = {"GEMM": 0.0, "large GEMM": 0.0, "small": 2.0, "tokens": 2.5, "chunks": 2.5, "LoRA": 1.7}
LARGE_ROWS = 512
# The standard case of the table, and the cases of whole steps.
ROWS, CONTEXT, RANK = 32, 512, 16


@dataclass(frozen=True)
class Prediction:
    """One line of the table. Times in microseconds; limit: the longer of bytes and operations."""

    kernel: str
    work: Work
    limit_us: float
    predicted_us: float
    bound: str


def standard_step(rows: int = ROWS, context: int = CONTEXT, adapters: int = ROWS) -> StepShape:
    """Return a decode step whose rows have distinct adapters in rotation."""
    adapted = rows if adapters else 0
    return StepShape((context,) * rows, (), (RANK,) * min(rows, adapters), adapted)


def kernel_lines(config: ModelConfig, card: Card) -> Iterator[Prediction]:
    """Yield every kernel of one layer of the standard decode step, the head, and the two large kernels of a prompt."""
    for name, work in layer_works(config, standard_step()).items():
        yield predict(name, work, card, ROWS, launches=2 if name == "two norms" else 1)
    works = step_works(config, standard_step())
    yield predict("head GEMM", works["head GEMM"], card, ROWS)
    for tokens in (2048, 8192):
        works = layer_works(config, StepShape(chunks=((0, tokens),)))
        yield predict(f"attend chunks, {tokens} tokens", works["attend chunks"], card, tokens)
        yield predict(f"gate_up GEMM, {tokens} tokens", works["gate_up GEMM"], card, tokens)


STEPS = {
    "step, 1 row": standard_step(1, adapters=0),
    "step, 32 rows": standard_step(adapters=0),
    "step, 32 rows of 32 adapters": standard_step(),
    "step, 256 rows of 256 adapters": standard_step(256, adapters=256),
    "step, prompt of 2048": StepShape(chunks=((0, 2048),)),
    "step, prompt of 8192": StepShape(chunks=((0, 8192),)),
    "step, 32 rows beside a prompt of 512": StepShape((CONTEXT,) * 32, ((0, 512),)),
}


def step_lines(config: ModelConfig, card: Card) -> Iterator[Prediction]:
    """Yield whole steps: the sum of their kernels, all layers."""
    for name, step in STEPS.items():
        yield predict_step(name, config, step, card)


def predict_step(name: str, config: ModelConfig, step: StepShape, card: Card) -> Prediction:
    """Return the sum of a step's kernels, each with as many launches as layers."""
    work, limit, predicted = Work(0.0), 0.0, 0.0
    for kernel, part in step_works(config, step).items():
        launches = 1 if kernel == "head GEMM" else config.num_layers * (2 if kernel == "two norms" else 1)
        rows = step.sampled if kernel == "head GEMM" else step.rows
        line = predict(kernel, part, card, rows, launches=launches)
        work, limit, predicted = work + part, limit + line.limit_us, predicted + line.predicted_us
    return Prediction(name, work, limit, predicted, work.bound(card.copy, card.flops))


def predict(kernel: str, work: Work, card: Card, rows: int, launches: int = 1) -> Prediction:
    """Return the prediction of a kernel by its name."""
    kind = kind_of(kernel, rows)
    limit = 1e6 * work.seconds(card.copy, card.flops)
    predicted = launches * FLOOR_US[kind] + limit / REACH[kind]
    return Prediction(kernel, work, limit, predicted, work.bound(card.copy, card.flops))


def kind_of(kernel: str, rows: int) -> str:
    """Return the kind whose reach and floor hold for a kernel of this name."""
    if "GEMM" in kernel:
        return "large GEMM" if rows >= LARGE_ROWS else "GEMM"
    if "attend" in kernel:
        return "chunks" if "chunks" in kernel else "tokens"
    return "LoRA" if "shrink" in kernel or "expand" in kernel else "small"
