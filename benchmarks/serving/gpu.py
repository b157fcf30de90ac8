"""Decode on a GPU: tokens per second of a Llama-3-8B-shaped model with random weights, bare and with 32 adapters.

The runner is driven as the engine drives it, one step ahead of the samples. The peers are the roofline (the bytes that
a step must read over the copy bandwidth of the same run) and transformers + PEFT on the same GPU and adapters.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import machine
from lora_kernels import AdapterPool, LoraPair
from serving.core import AdapterRef, Request, SamplingParams, Sequence
from serving.kv.paged import PagedKV
from serving.models.config import ModelConfig
from serving.models.llama import pool_spec
from serving.models.loader import LayerWeights, ModelWeights, part_sizes
from serving.steps import Chunk, StepPlan

if TYPE_CHECKING:
    from serving.runner.gpu import GpuRunner

BLOCK, CONTEXT, ADAPTERS, RANK = 16, 512, 32, 16
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def llama_3_8b(layers: int = 32) -> ModelConfig:
    """Return the published shape (arXiv 2407.21783, table 3)."""
    return ModelConfig.from_hf(
        {
            "model_type": "llama",
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": layers,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "tie_word_embeddings": False,
        }
    )


def random_weights(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> ModelWeights:
    """Return small random weights, which cannot overflow; speed does not depend on the values."""

    def tensor(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device=device, dtype=dtype).normal_(0, 0.02)

    sizes = {name: (sum(outs), width) for name, (width, outs) in part_sizes(config).items()}
    hidden = config.hidden_size
    layers = tuple(
        LayerWeights(
            input_norm=tensor(hidden), post_norm=tensor(hidden), **{name: tensor(*size) for name, size in sizes.items()}
        )
        for _ in range(config.num_layers)
    )
    return ModelWeights(tensor(config.vocab_size, hidden), layers, tensor(hidden), tensor(config.vocab_size, hidden))


class _NoText:
    stopped = False

    def push(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


class _Slots:
    """A pool in which adapter "3" has slot 3."""

    def __init__(self, pool: AdapterPool) -> None:
        self.pool = pool

    def slot(self, digest: str | None) -> int:
        return -1 if digest is None else int(digest)


def decode_seconds(runner: GpuRunner, batch: int, adapters: int, context: int, steps: int) -> float:
    """Return the median seconds between steps of `batch` sequences of about `context` tokens, adapters in rotation."""
    sequences = []
    for index in range(batch):
        ref = AdapterRef(str(index % adapters) if adapters else None)
        request = Request("", "", "", ref, (1,) * context, SamplingParams(temperature=0, ignore_eos=True), steps)
        sequence = Sequence(request, 0.0, [1] * context, _NoText(), random.Random(0))
        blocks = -(-(context + steps) // BLOCK)
        sequence.blocks = list(range(1 + index * blocks, 1 + (index + 1) * blocks))
        sequences.append(sequence)
    pending = None
    times: list[float] = []
    for step in range(steps):
        position = context - 1 + step
        following = runner.launch(StepPlan(chunks=[Chunk(sequence, position, 1) for sequence in sequences]))
        if pending is not None:
            for sequence, answer in zip(sequences, pending.result(), strict=True):
                sequence.tokens.append(answer.token_id if answer.token_id is not None else 0)
        times.append(time.perf_counter())
        pending = following
    gaps = [b - a for a, b in itertools.pairwise(times)]
    return statistics.median(gaps[len(gaps) // 4 :])


def step_bytes(config: ModelConfig, batch: int, adapters: int, context: int) -> int:
    """Return the bytes a decode step must read in bfloat16: weights, each sequence's KV, each adapter in use."""
    body = config.num_layers * sum(width * sum(outs) for width, outs in part_sizes(config).values())
    kv = batch * context * config.num_layers * 2 * config.kv_size
    ranks = sum(len(outs) * width + sum(outs) for width, outs in part_sizes(config).values())
    lora = min(batch, adapters) * RANK * config.num_layers * ranks
    return 2 * (body + config.vocab_size * config.hidden_size + kv + lora)


def peft_seconds(config: ModelConfig, batch: int, context: int, steps: int) -> float:
    """Return the median seconds per decode step of transformers + PEFT, with mixed adapters in the batch."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, LlamaConfig

    shape = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        rope_theta=config.rope_theta,
        tie_word_embeddings=False,
    )
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16).eval()
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=targets)
    tuned: Any = get_peft_model(model, lora, adapter_name="0", autocast_adapter_dtype=False)
    for index in range(1, ADAPTERS):
        tuned.add_adapter(str(index), lora)
    ids = torch.ones(batch, context, dtype=torch.int64, device="cuda")
    names = [str(index % ADAPTERS) for index in range(batch)]
    times: list[float] = []

    def clock(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        torch.cuda.synchronize()
        times.append(time.perf_counter())
        return scores

    with torch.inference_mode():
        tuned.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=steps,
            min_new_tokens=steps,
            do_sample=False,
            adapter_names=names,
            logits_processor=[clock],
            pad_token_id=0,
        )
    return statistics.median(b - a for a, b in itertools.pairwise(times[1:]))


def main(argv: list[str] | None = None) -> int:
    """Return 0 when LoRA costs at most 10 % at every batch size, 1 when it costs more, 2 without a CUDA device."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.gpu", description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batches", type=lambda text: [*map(int, text.split(","))], default=list(BATCHES))
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--peft", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path, help="folder of the results (default: one for this kind of GPU)")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("error: no CUDA device, so the benchmark did not run", file=sys.stderr)
        return 2
    config = llama_3_8b(options.layers)
    device = torch.device("cuda")
    with torch.inference_mode():
        runner = _runner(config, device, max(options.batches), CONTEXT + options.steps)
        copy = _copy_rate(device)
        rows = [_row(runner, config, batch, options.steps, copy) for batch in options.batches]
    if options.peft:
        for row in rows:
            if row["batch"] in (1, 32):
                row["peft_ms"] = peft_seconds(config, row["batch"], CONTEXT, 16) * 1e3
    print("| batch | base ms | 32 adapters ms | overhead | tokens/s | of the roofline | PEFT ms |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        peft = f"{row['peft_ms']:.1f}" if "peft_ms" in row else "–"
        print(
            f"| {row['batch']} | {row['base_ms']:.2f} | {row['lora_ms']:.2f} | {row['overhead']:.1%} | "
            f"{row['tokens_per_s']:.0f} | {row['roofline']:.0%} | {peft} |"
        )
    report = {"machine": machine.describe(), "copy_gb_s": copy / 1e9, "layers": options.layers, "rows": rows}
    machine.write_suite(options.out or machine.RESULTS / machine.gpu_kind(), "serving_gpu", report)
    return int(any(row["overhead"] > 0.10 for row in rows))


def _row(runner: GpuRunner, config: ModelConfig, batch: int, steps: int, copy: float) -> dict[str, Any]:
    base, lora = [], []
    for _ in range(3):  # interleaved, because clocks drift
        base.append(decode_seconds(runner, batch, 0, CONTEXT, steps))
        lora.append(decode_seconds(runner, batch, ADAPTERS, CONTEXT, steps))
    bare, tuned = statistics.median(base), statistics.median(lora)
    return {
        "batch": batch,
        "base_ms": bare * 1e3,
        "lora_ms": tuned * 1e3,
        "overhead": tuned / bare - 1,
        "tokens_per_s": batch / tuned,
        "roofline": step_bytes(config, batch, ADAPTERS, CONTEXT) / copy / tuned,
    }


def _runner(config: ModelConfig, device: torch.device, batch: int, length: int) -> GpuRunner:
    # Imported late: a machine without a GPU may lack Triton, and the command should still explain itself.
    from serving.models.llama_gpu import GpuLlama
    from serving.runner.gpu import GpuRunner
    from serving.runner.graphs import CudaGraphs

    dtype = torch.bfloat16
    pool = AdapterPool(pool_spec(config), ADAPTERS, ADAPTERS, dtype, device)
    blocks = -(-length // BLOCK)
    kv = PagedKV(config, batch * blocks + 1, BLOCK, dtype, device)
    model = GpuLlama(config, random_weights(config, device, dtype), length, batch)
    runner = GpuRunner(
        model, kv, _Slots(pool), max_rows=batch, max_samples=batch, max_blocks=blocks, graphs=CudaGraphs()
    )
    for slot in range(ADAPTERS):
        pool.load(slot, _adapter(config, device, dtype))
    return runner


def _adapter(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> dict[tuple[int, str, int], LoraPair]:
    out = {}
    for site in pool_spec(config).sites:
        for layer in range(config.num_layers):
            for index, width in enumerate(site.slices):
                a = torch.empty(RANK, site.in_features, device=device, dtype=dtype).normal_(0, 0.01)
                b = torch.empty(width, RANK, device=device, dtype=dtype).normal_(0, 0.01)
                out[layer, site.name, index] = LoraPair(a, b, 2.0)
    return out


def _copy_rate(device: torch.device) -> float:
    """Return the bytes per second, read and written, of a large copy."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def seconds(work: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    seconds(lambda: target.copy_(source))
    return 2 * len(source) / statistics.median(seconds(lambda: target.copy_(source)) for _ in range(9))


if __name__ == "__main__":
    sys.exit(main())
