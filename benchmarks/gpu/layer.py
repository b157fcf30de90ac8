"""Stage: each kernel of one layer of a decode step by itself, as the forward pass calls it, by predictions' names."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional

from benchmarks.gpu import records
from benchmarks.gpu.attention import chunk_call, token_call
from benchmarks.gpu.limits import StepShape, standard_step
from benchmarks.gpu.model import llama_3_8b, random_adapter
from benchmarks.gpu.stages import LAYERS
from benchmarks.gpu.timing import Cuda, Device, cold_layers, normal
from lora_kernels import AdapterPool, BatchMetadata, MetadataBuffers
from lora_kernels.ops.expand import launch_expand
from lora_kernels.ops.shrink import launch_shrink, new_planes, planes_for
from lora_kernels.ops.tuning import plan_for
from serving.kernels.triton.activation import silu_mul
from serving.kernels.triton.norm import add_rms_norm
from serving.kernels.triton.rope import rope_and_store
from serving.kv.paged import KVLayer
from serving.models.config import ModelConfig
from serving.models.llama import pool_spec
from serving.models.loader import part_sizes
from serving.models.rope import rope_halves

Call = Callable[[int], object]
PROMPTS = (2048, 8192)


@dataclass(frozen=True)
class Timed:
    """A kernel, a call of one layer of it, and in how many layers it is measured."""

    name: str
    call: Call
    layers: int


def kernels(
    config: ModelConfig, device: Device, step: StepShape, prompts: tuple[int, ...]
) -> Iterator[tuple[str, Callable[[], Iterator[Timed]]]]:
    """Yield groups of kernels, of a decode step and then of prompts, by name: one that fails to be made costs no other.

    A group's memory is free before the next one is made.
    """
    yield "GEMMs", lambda: _gemms(config, device, step.rows)
    yield "LoRA", lambda: _lora(config, device, step)
    yield "small kernels", lambda: _small(config, device, step.rows)
    yield "attention of tokens", lambda: _tokens(config, device, step)
    yield "head", lambda: iter([_gemm(device, "head GEMM", step.sampled, config.vocab_size, config.hidden_size)])
    for tokens in prompts:
        yield f"prompt of {tokens}", partial(_prompt, config, device, tokens)


def _tokens(config: ModelConfig, device: Device, step: StepShape) -> Iterator[Timed]:
    attention = token_call(config, device, list(step.contexts))
    yield Timed("attend tokens", attention.call, len(attention.kv.layers))


def _prompt(config: ModelConfig, device: Device, tokens: int) -> Iterator[Timed]:
    attention = chunk_call(config, device, tokens)
    yield Timed(f"attend chunks, {tokens} tokens", attention.call, len(attention.kv.layers))
    inputs, outputs = part_sizes(config)["gate_up"]
    yield _gemm(device, f"gate_up GEMM, {tokens} tokens", tokens, sum(outputs), inputs)


def _gemm(device: Device, name: str, rows: int, outputs: int, inputs: int) -> Timed:
    layers = cold_layers(device.device, 2 * outputs * inputs)
    weights = [normal(device, outputs, inputs) for _ in range(layers)]
    x = normal(device, rows, inputs)
    return Timed(name, lambda layer: functional.linear(x, weights[layer]), layers)


def _gemms(config: ModelConfig, device: Device, rows: int) -> Iterator[Timed]:
    for site, (inputs, outputs) in part_sizes(config).items():
        yield _gemm(device, f"{site} GEMM", rows, sum(outputs), inputs)


def _lora(config: ModelConfig, device: Device, step: StepShape) -> Iterator[Timed]:
    """Shrink and expand apart, at every site; the adapters lie in a pool of all layers, so that they are cold."""
    spec, distinct = pool_spec(config), len(step.ranks)
    pages = sum(-(-rank // spec.page_size) for rank in step.ranks)
    pool = AdapterPool(spec, pages, distinct, device.dtype, device.device, backend="triton")
    adapter = random_adapter(config, device.dtype)
    for slot in range(distinct):
        pool.load(slot, adapter)
    pool.settle()
    rows = step.adapted
    buffers = MetadataBuffers(rows, rows, device.device, max_pages=spec.max_pages)
    meta = BatchMetadata.build([row % distinct for row in range(rows)], [1] * rows, pool, buffers)
    for site in spec.sites:
        storage = pool.site(site.name)
        plan = plan_for(storage)
        v = new_planes(storage, meta, planes_for(plan.config, rows))
        x, y = normal(device, rows, site.in_features), normal(device, rows, site.out_features)

        def shrink(layer: int, x=x, storage=storage, v=v, plan=plan) -> None:  # type: ignore[no-untyped-def]
            launch_shrink(x, storage, layer, meta, v, plan)

        def expand(layer: int, y=y, storage=storage, v=v, plan=plan) -> None:  # type: ignore[no-untyped-def]
            launch_expand(v, storage, layer, meta, y, plan, add=True)

        yield Timed(f"{site.name} shrink", shrink, config.num_layers)
        yield Timed(f"{site.name} expand", expand, config.num_layers)


def _small(config: ModelConfig, device: Device, rows: int) -> Iterator[Timed]:
    """The kernels between the products. Their activations are warm, as in a step."""
    layers = cold_layers(device.device, 1)
    hidden, wide = config.hidden_size, config.q_size + 2 * config.kv_size
    residual, delta, out = (normal(device, rows, hidden) for _ in range(3))
    weight = normal(device, hidden)

    def norms(_: int) -> None:
        for _ in range(2):
            add_rms_norm(residual, delta, weight, config.rms_norm_eps, out)

    both, active = normal(device, rows, 2 * config.intermediate_size), normal(device, rows, config.intermediate_size)
    qkv = normal(device, rows, wide)
    positions = torch.arange(rows, dtype=torch.int32, device=device.device)
    table = rope_halves(config.ropes[0], rows).to(device.device)
    kv = KVLayer(*(normal(device, rows, config.num_kv_heads, config.head_dim) for _ in range(2)))
    yield Timed("two norms", norms, layers)
    yield Timed(
        "rope",
        lambda _: rope_and_store(qkv, positions, positions, table, kv, config.num_heads),
        layers,
    )
    yield Timed("silu", lambda _: silu_mul(both, active), layers)


def write_card(device: Device, name: str) -> float:
    """Write the copy bandwidth of this run. Returns bytes per second."""
    copy = device.copy_bytes_per_second()
    records.emit({"record": "card", "device": name, "copy_bytes_per_s": copy})
    return copy


def measure(config: ModelConfig, device: Device, step: StepShape, prompts: tuple[int, ...]) -> int:
    """Write a record per kernel. Returns how many failed. Raises OutOfMemoryError for the run to try again."""
    failed = 0
    with torch.inference_mode():
        for group, make in kernels(config, device, step, prompts):
            name = group
            try:
                for one in make():
                    name = one.name
                    us = 1e6 * device.seconds(one.call, one.layers)
                    records.emit({"record": "line", "line": name, "us": us})
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                failed += 1
                traceback.print_exc()
                records.emit({"record": "failed", "line": name, "problem": f"{type(error).__name__}: {error}"[:500]})
    return failed


def main() -> int:
    """Return 1 when a kernel failed."""
    write_card(Cuda(), torch.cuda.get_device_name())
    config = llama_3_8b(int(os.environ.get(LAYERS) or 32))
    return int(measure(config, Cuda(), standard_step(), PROMPTS) > 0)


if __name__ == "__main__":
    sys.exit(main())
