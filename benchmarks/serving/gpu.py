"""Steps of a Llama-3-8B-shaped model with random weights on a GPU: decode, prompts, both, sampled, with adapters.

The runner is driven as the engine drives it, one step ahead of its answers. Every figure stands beside the least time
that its bytes and operations take (benchmarks/roofline.py) at the copy bandwidth of the same run and at the nominal
one; transformers + PEFT decode on the same GPU afterwards. Results are on disk after every case.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.gpu_timing import Cuda, Device
from benchmarks.roofline import CARDS, Card, card_named, step_seconds, step_works, total
from benchmarks.serving import gpu_traffic
from benchmarks.serving.gpu_cases import StepCase, cases
from benchmarks.serving.gpu_model import BLOCK, Sizes, build_runner, llama_3_8b
from serving.kv.paged import PagedKV
from serving.models.config import ModelConfig

# The bars, as shares of the physical limit of the whole step: with 32 adapters the limit itself is a sixth above the
# base model's, so that a bar on the overhead alone could ask for the impossible.
DECODE_SHARE, DECODE_ROWS = 1 / 1.35, 32
MIXED_SHARE = 0.85
ADAPTERS = 256
# Bytes left for activations, graphs and cuBLAS beside weights, adapters and KV.
LEFT_FREE = 6 << 30
PEFT_BATCHES, PEFT_ADAPTERS, PEFT_STEPS = (1, 32), 32, 16


@dataclasses.dataclass(frozen=True)
class Bench:
    """A model on a device: everything that a case needs to be measured.

    copy: bytes per second; card: nominal rates, None where the card is unknown
    """

    config: ModelConfig
    device: Device
    runner: gpu_traffic.Runner
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
            seconds = gpu_traffic.step_seconds(self.runner, case, steps, self.blocks)
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
    needed = max(gpu_traffic.Traffic(case, steps).blocks for case in wanted)
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


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the rows as Markdown."""
    lines = ["| step | ms | limit ms | share | of nominal | tokens/s | PEFT ms |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        if "step_ms" not in row:
            lines.append(f"| {row['case']} | left out: {row['left_out']} |  |  |  |  |  |")
            continue
        peft = f"{row['peft_ms']:.1f}" if "peft_ms" in row else "–"
        lines.append(
            f"| {row['case']} | {row['step_ms']:.2f} | {row['limit_ms']:.2f} ({row['bound']}) | {row['share']:.0%} | "
            f"{row['share_of_nominal']:.0%} | {row['tokens_per_s']:.0f} | {peft} |"
        )
    return "\n".join(lines)


def measure(
    bench: Bench, wanted: Iterable[StepCase], steps: int, deadline: float, keep: Callable[[list[dict[str, Any]]], None]
) -> list[dict[str, Any]]:
    """Measure the cases, and hand all rows so far to `keep` after each of them."""
    rows: list[dict[str, Any]] = []
    for row in rows_of(bench, wanted, steps, deadline):
        rows.append(row)
        keep(rows)
    return rows


def add_peft(rows: list[dict[str, Any]], model: Any, context: int) -> None:
    """Add PEFT's milliseconds to the decode rows with 32 adapters. `model`: a `PeftModel`."""
    for row in rows:
        asked = row["kind"] == "decode" and row["batch"] in PEFT_BATCHES and row["context"] == context
        if asked and row["adapters"] == PEFT_ADAPTERS and not row["sampled"]:
            row["peft_ms"] = 1e3 * model.step_seconds(row["batch"], context, PEFT_STEPS)


def main(argv: list[str] | None = None) -> int:
    """Return 0 when every bar holds, 1 when one is missed, 2 without a CUDA device."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.gpu", description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--budget", type=float, default=900, metavar="SECONDS", help="begin no case after that")
    parser.add_argument("--quick", action="store_true", help="the first twelve cases")
    parser.add_argument("--peft", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path, help="folder of the results (default: one for this kind of GPU)")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("error: no CUDA device, so the benchmark did not run", file=sys.stderr)
        return 2
    from serving.runner.graphs import CudaGraphs

    deadline = time.monotonic() + options.budget
    config, wanted, device = llama_3_8b(options.layers), cases(options.quick), Cuda()
    bench = make_bench(config, device, wanted, options.steps, CudaGraphs())
    folder = options.out or machine.RESULTS / machine.gpu_kind()
    about = {"machine": machine.describe(), "copy_gb_s": bench.copy / 1e9, "layers": options.layers}

    def keep(rows: list[dict[str, Any]]) -> None:
        machine.write_suite(folder, "serving_gpu", {**about, "rows": rows})
        print(table(rows[-1:]).splitlines()[-1], flush=True)

    rows = measure(bench, wanted, options.steps, deadline, keep)
    if options.peft:
        from benchmarks.serving.gpu_peft import PeftModel

        del bench  # its memory is PEFT's now
        torch.cuda.empty_cache()
        add_peft(rows, PeftModel(config, PEFT_ADAPTERS, device.device, device.dtype), wanted[0].context)
        keep(rows)
    print(table(rows))
    missed = missed_bars(rows)
    print("\n".join(missed) or "Every bar holds.")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
