"""The least work of a llama's step on a GPU: bytes that must move and operations that must be done, kernel by kernel.

A roofline (Williams et al., 2009): no kernel is faster than its bytes at the copy bandwidth or its operations at the
tensor cores' rate, whichever takes longer. Everything is in 16-bit types unless `weight_bytes` or `kv_bytes` says
otherwise; weights, K and V are read once, activations written once and read once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from serving.models.config import ModelConfig
from serving.models.loader import part_sizes

BYTES = 2  # bfloat16


@dataclass(frozen=True)
class Card:
    """A GPU by its data sheet (`nominal` and `flops`, dense bfloat16) and by the bandwidth that copies reach on it.

    Bytes and operations per second.
    """

    name: str
    nominal: float
    copy: float
    flops: float


# Data sheets: H100 SXM 3.35 TB/s, H200 4.8 TB/s, both 989 TFLOP/s. `copy` counts reads and writes of a large copy;
# 3.0 and 4.3 TB/s are others' published measurements, replaced by this run's own wherever there is one.
CARDS = {
    "H100": Card("H100", 3.35e12, 3.0e12, 989e12),
    "H200": Card("H200", 4.8e12, 4.3e12, 989e12),
}


def card_named(device: str) -> Card | None:
    """Return the card that a device's name such as "NVIDIA H100 80GB HBM3" contains, if it is a known one."""
    return next((card for name, card in CARDS.items() if re.search(rf"\b{name}\b", device)), None)


@dataclass(frozen=True)
class Work:
    """Bytes that a kernel must move and floating-point operations that it must do."""

    bytes: float
    flops: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes + other.bytes, self.flops + other.flops)

    def seconds(self, bandwidth: float, flops: float) -> float:
        """Return the least time."""
        return max(self.bytes / bandwidth, self.flops / flops)

    def bound(self, bandwidth: float, flops: float) -> str:
        """Return which of the two binds: "bytes" or "FLOP"."""
        return "bytes" if self.bytes / bandwidth >= self.flops / flops else "FLOP"


def gemm(rows: int, outputs: int, inputs: int, weight_bytes: int = BYTES) -> Work:
    """y = x Wᵀ: weights once, x read, y written."""
    return Work(weight_bytes * outputs * inputs + BYTES * rows * (inputs + outputs), 2.0 * rows * outputs * inputs)


def rows_through(rows: int, read: int, written: int) -> Work:
    """An elementwise kernel over rows of `read` and `written` values."""
    return Work(BYTES * rows * (read + written))


def attend(config: ModelConfig, begin: int, count: int, kv_bytes: int = BYTES) -> Work:
    """Causal attention of `count` positions from `begin` on, in one layer: K and V of all positions once."""
    keys = begin + count
    pairs = count * begin + count * (count + 1) / 2
    return Work(kv_bytes * keys * 2 * config.kv_size + BYTES * count * 2 * config.q_size, 4.0 * pairs * config.q_size)


def shrink(ranks: Sequence[int], rows: int, inputs: int, slices: int) -> Work:
    """v = x Aᵀ for distinct adapters of these ranks, whose rows are evenly spread; v stays in float32 planes."""
    mean = sum(ranks) / len(ranks) if ranks else 0
    return Work(
        BYTES * (sum(ranks) * slices * inputs + rows * inputs) + 4 * rows * slices * mean,
        2.0 * rows * slices * mean * inputs,
    )


def expand(ranks: Sequence[int], rows: int, outputs: int, slices: int) -> Work:
    """y += v Bᵀ: B once, y read and written."""
    mean = sum(ranks) / len(ranks) if ranks else 0
    return Work(
        BYTES * (sum(ranks) * outputs + 2 * rows * outputs) + 4 * rows * slices * mean, 2.0 * rows * mean * outputs
    )


@dataclass(frozen=True)
class StepShape:
    """The rows of one step: contexts of single-token rows, (begin, count) of chunks, the ranks of distinct adapters.

    adapted: rows that have an adapter; sampled: rows whose logits are computed
    """

    contexts: tuple[int, ...] = ()
    chunks: tuple[tuple[int, int], ...] = ()
    ranks: tuple[int, ...] = ()
    adapted: int = 0

    @property
    def rows(self) -> int:
        """Return all rows."""
        return len(self.contexts) + sum(count for _, count in self.chunks)

    @property
    def sampled(self) -> int:
        """Return the rows that the head sees: one for each sequence."""
        return len(self.contexts) + len(self.chunks)


def layer_works(config: ModelConfig, step: StepShape) -> dict[str, Work]:
    """Return the work of every kernel of one layer, by name."""
    rows = step.rows
    works: dict[str, Work] = {"two norms": rows_through(2 * rows, 2 * config.hidden_size, 2 * config.hidden_size)}
    for site, (inputs, outputs) in part_sizes(config).items():
        works[f"{site} GEMM"] = gemm(rows, sum(outputs), inputs)
        if step.ranks and step.adapted:
            works[f"{site} shrink"] = shrink(step.ranks, step.adapted, inputs, len(outputs))
            works[f"{site} expand"] = expand(step.ranks, step.adapted, sum(outputs), len(outputs))
    wide = config.q_size + 2 * config.kv_size
    works["rope"] = rows_through(rows, wide, wide)
    works["silu"] = rows_through(rows, 2 * config.intermediate_size, config.intermediate_size)
    if step.contexts:
        works["attend tokens"] = total(attend(config, context - 1, 1) for context in step.contexts)
    if step.chunks:
        works["attend chunks"] = total(attend(config, begin, count) for begin, count in step.chunks)
    return works


def step_works(config: ModelConfig, step: StepShape) -> dict[str, Work]:
    """Return the work of every kernel of a whole step, by name: all layers, and the head once."""
    layers = {name: scaled(work, config.num_layers) for name, work in layer_works(config, step).items()}
    return {**layers, "head GEMM": gemm(step.sampled, config.vocab_size, config.hidden_size)}


def step_seconds(works: Mapping[str, Work], bandwidth: float, flops: float) -> float:
    """Return the least time of kernels that run one after another."""
    return sum(work.seconds(bandwidth, flops) for work in works.values())


def total(works: Iterable[Work]) -> Work:
    """Return the sum of works."""
    found = Work(0.0)
    for work in works:
        found = found + work
    return found


def scaled(work: Work, times: float) -> Work:
    """Return the work of so many kernels like this one."""
    return Work(work.bytes * times, work.flops * times)


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
