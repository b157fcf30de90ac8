"""Stage: steps of a Llama-3-8B-shaped model with random weights: decode, prompts, both, sampled, with adapters.

The runner is driven as the engine drives it, one step ahead of its answers. Every figure stands beside the least time
that its bytes and operations take (`limits.py`) at the copy bandwidth of the same run and at the nominal one; steps of
the table are scaled to all layers.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from benchmarks.gpu import records
from benchmarks.gpu.cases import Runner, StepCase, Traffic, cases
from benchmarks.gpu.cases import step_seconds as measured_seconds
from benchmarks.gpu.limits import CARDS, STEPS, Card, StepShape, card_named, step_seconds, step_works, total
from benchmarks.gpu.model import BLOCK, Sizes, build_runner, llama_3_8b
from benchmarks.gpu.stages import LAYERS, SECONDS
from benchmarks.gpu.timing import Cuda, Device
from serving.kv.paged import PagedKV
from serving.models.config import ModelConfig

# The bars, as shares of the physical limit of the whole step: with 32 adapters the limit itself is a sixth above the
# base model's, so that a bar on the overhead alone could ask for the impossible.
DECODE_SHARE, DECODE_ROWS = 1 / 1.35, 32
MIXED_SHARE = 0.85
ADAPTERS = 256
WHOLE = llama_3_8b()
REPETITIONS = 48
# Bytes left for activations, graphs and cuBLAS beside weights, adapters and KV.
LEFT_FREE = 6 << 30


@dataclasses.dataclass(frozen=True)
class Bench:
    """A model on a device: everything that a case needs to be measured.

    copy: bytes per second; card: nominal rates, None where the card is unknown
    """

    config: ModelConfig
    device: Device
    runner: Runner
    blocks: int
    adapters: int
    copy: float
    card: Card

    def row(self, case: StepCase, steps: int) -> dict[str, Any]:
        """Measure one case. The row says why where it does not fit."""
        about = {"case": case.name, "kind": case.kind, **dataclasses.asdict(case), "layers": self.config.num_layers}
        if case.adapters > self.adapters:
            return {**about, "left_out": f"needs {case.adapters} adapters, and {self.adapters} fit"}
        try:
            seconds = measured_seconds(self.runner, case, steps, self.blocks)
        except ValueError as error:
            return {**about, "left_out": str(error)}
        works = step_works(self.config, case.shape)
        limit = step_seconds(works, self.copy, self.card.flops)
        nominal = step_seconds(works, self.card.nominal, self.card.flops)
        prompt = total(step_works(self.config, StepCase(prompt=case.prompt).shape).values())
        tokens = case.batch + (case.prompt if case.kind == "prefill" else 0)
        return {
            **about,
            "step_ms": 1e3 * seconds,
            "limit_ms": 1e3 * limit,
            "share": limit / seconds,
            "share_of_nominal": nominal / seconds,
            "bound": total(works.values()).bound(self.copy, self.card.flops),
            "prompt_flop_ms": 1e3 * prompt.flops / self.card.flops if case.prompt else 0.0,
            "tokens_per_s": tokens / seconds,
        }


def make_bench(config: ModelConfig, device: Device, wanted: Iterable[StepCase], steps: int, graphs: Any) -> Bench:
    """Return a bench whose runner has as many KV blocks as the cases need, or as fit."""
    wanted = list(wanted)
    copy = device.copy_bytes_per_second()
    adapters = max(1, min(ADAPTERS, max(case.adapters for case in wanted)))
    needed = max(Traffic(case, steps).blocks for case in wanted)
    blocks = min(needed, _blocks_that_fit(config, device, adapters, needed))
    sizes = Sizes(
        sequences=max(case.batch + bool(case.prompt) for case in wanted),
        rows=max(case.batch + case.prompt for case in wanted),
        length=max(max(case.context + steps, case.prompt) for case in wanted),
        blocks=blocks,
        adapters=adapters,
    )
    runner = build_runner(config, device.device, device.dtype, sizes, graphs, interpreted=device.interpreted)
    name = torch.cuda.get_device_name() if device.device.type == "cuda" else "H100"
    return Bench(config, device, runner, blocks, adapters, copy, card_named(name) or CARDS["H100"])


def _blocks_that_fit(config: ModelConfig, device: Device, adapters: int, needed: int) -> int:
    if device.device.type != "cuda":
        return needed
    free, _ = torch.cuda.mem_get_info()
    works = step_works(config, StepCase(adapters, adapters=adapters).shape)
    weights = sum(work.bytes for name, work in works.items() if "GEMM" in name or "shrink" in name or "expand" in name)
    embedding = 2 * config.vocab_size * config.hidden_size
    left = free - weights - embedding - LEFT_FREE
    return max(2, int(left // PagedKV.bytes_per_block(config, BLOCK, device.dtype)))


def rows_of(bench: Bench, wanted: Iterable[StepCase], steps: int, deadline: float) -> Iterator[dict[str, Any]]:
    """Yield a row per case until the deadline of `time.monotonic`."""
    with torch.inference_mode():
        for case in wanted:
            if time.monotonic() > deadline:
                return
            yield bench.row(case, steps if case.prompt < 2048 else max(8, steps // 4))


def missed_bars(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each bar that a measured row misses: the whole step's limit in decode; in a mixed step, the
    time of its decode rows alone plus its prompt's operations."""
    alike = ("batch", "context", "adapters", "sampled")
    measured = [row for row in rows if "step_ms" in row]
    decode = {tuple(row[key] for key in alike): row["step_ms"] for row in measured if row["kind"] == "decode"}
    missed = []
    for row in measured:
        alone = decode.get(tuple(row[key] for key in alike))
        if row["kind"] == "decode" and row["batch"] >= DECODE_ROWS and row["share"] < DECODE_SHARE:
            missed.append(f"{row['case']}: {row['share']:.0%} of its limit, {DECODE_SHARE:.0%} wanted")
        if row["kind"] == "mixed" and alone is not None:
            share = (alone + row["prompt_flop_ms"]) / row["step_ms"]
            if share < MIXED_SHARE:
                missed.append(f"{row['case']}: {share:.0%} of decode and prompt apart, {MIXED_SHARE:.0%} wanted")
    return missed


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


def write_rows(bench: Bench, wanted: Iterable[StepCase], repetitions: int, deadline: float) -> list[dict[str, Any]]:
    """Measure cases and write each row, and its line of the table where it has one. Returns the rows."""
    wanted = list(wanted)
    card = Card(bench.card.name, bench.card.nominal, bench.copy, bench.card.flops)
    rows: list[dict[str, Any]] = []
    for case, row in zip(wanted, rows_of(bench, wanted, repetitions, deadline), strict=False):
        rows.append(row)
        records.emit({"record": "step", **row})
        line = line_of(case)
        if line is not None and "step_ms" in row:
            us = scaled_us(row, case, card)
            records.emit({"record": "line", "line": line, "us": us, "layers": row["layers"]})
    for missed in missed_bars(rows):
        records.emit({"record": "missed bar", "bar": missed})
    return rows


def main() -> int:
    """Measure for nine tenths of the stage's time; a missed bar is a result, not a failure."""
    from serving.runner.graphs import CudaGraphs

    deadline = time.monotonic() + 0.9 * float(os.environ.get(SECONDS, "900"))
    config, wanted = llama_3_8b(int(os.environ.get(LAYERS) or 32)), cases()
    bench = make_bench(config, Cuda(), wanted, REPETITIONS, CudaGraphs())
    write_rows(bench, wanted, REPETITIONS, deadline)
    return 0


if __name__ == "__main__":
    sys.exit(main())
