"""Every way to apply many adapters at once on a CPU. Weights are laid out as each likes best, outside of the timing."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from benchmarks.kernels.grid import Inputs
from lora_kernels import AdapterPool, BatchMetadata, LoraPair, PoolSpec, SiteSpec, lora_apply

# y += ΔW x, on the y it is given.
Step = Callable[[torch.Tensor], object]
Prepare = Callable[[Inputs], Step]

# A gather of more than this does not fit beside the rest on a small machine.
MOST_GATHERED_BYTES = 1 << 30


class Unsupported(Exception):
    """This contender does not run at this point; the message says why."""


def ours(inputs: Inputs) -> Step:
    """`lora_kernels.lora_apply`."""
    point, shape = inputs.point, inputs.point.shape
    spec = PoolSpec((SiteSpec("site", shape.k, shape.slices),), num_layers=1, max_rank=max(16, point.rank))
    pool = AdapterPool(spec, point.distinct * spec.max_pages, point.distinct, point.torch_dtype)
    for adapter in range(point.distinct):
        pool.load(
            adapter,
            {
                (0, "site", index): LoraPair(inputs.a[adapter, index], inputs.b[index][adapter], inputs.scale)
                for index in range(len(shape.slices))
            },
        )
    meta = BatchMetadata.build(list(range(point.distinct)), [inputs.rows_each] * point.distinct, pool)
    return lambda y: lora_apply(y, inputs.x, "site", 0, meta)


def peft_loop(inputs: Inputs) -> Step:
    """What PEFT does with a mixed batch: per adapter take its rows, two matmuls a module, scale, add them back."""
    x, scale, bounds = inputs.x, inputs.scale, inputs.bounds
    rows = [torch.nonzero(inputs.row_adapters == adapter).flatten() for adapter in range(inputs.point.distinct)]

    def step(y: torch.Tensor) -> None:
        for adapter, ids in enumerate(rows):
            mine = x[ids]
            for index, (begin, end) in enumerate(bounds):
                v = torch.nn.functional.linear(mine, inputs.a[adapter, index])
                delta = torch.nn.functional.linear(v, inputs.b[index][adapter]) * scale
                y[:, begin:end].index_add_(0, ids, delta)

    return step


def grouped_mm(inputs: Inputs) -> Step:
    """`torch.nn.functional.grouped_mm`: rows are sorted by adapter already, slices of A in one product."""
    point, rank = inputs.point, inputs.point.rank
    a = inputs.a.flatten(1, 2).transpose(1, 2)
    b = [(weights * inputs.scale).to(point.torch_dtype).transpose(1, 2) for weights in inputs.b]
    ends = torch.arange(1, point.distinct + 1, dtype=torch.int32) * inputs.rows_each

    def step(y: torch.Tensor) -> None:
        v = torch.nn.functional.grouped_mm(inputs.x, a, offs=ends)
        for index, (begin, end) in enumerate(inputs.bounds):
            part = v[:, index * rank : (index + 1) * rank]
            y[:, begin:end] += torch.nn.functional.grouped_mm(part, b[index], offs=ends)

    try:
        step(inputs.y.clone())
    except (RuntimeError, AttributeError) as error:
        raise Unsupported(f"grouped_mm: {str(error).splitlines()[0]}") from error
    return step


def gathered_bmm(inputs: Inputs) -> Step:
    """One copy of the adapter's weights per row, then batched matmuls (adapters stacked with slices side by side)."""
    point, rank = inputs.point, inputs.point.rank
    _check_gather(inputs)
    a = inputs.a.flatten(1, 2)
    b = [(weights * inputs.scale).to(point.torch_dtype) for weights in inputs.b]

    def step(y: torch.Tensor) -> None:
        v = torch.bmm(a[inputs.row_adapters], inputs.x[:, :, None])
        for index, (begin, end) in enumerate(inputs.bounds):
            part = v[:, index * rank : (index + 1) * rank]
            y[:, begin:end] += torch.bmm(b[index][inputs.row_adapters], part)[:, :, 0]

    return step


def all_slot_mask(inputs: Inputs) -> Step:
    """Every row times every adapter, the wrong ones masked: two dense matmuls, the scale folded into the mask."""
    point, rank = inputs.point, inputs.point.rank
    a = [inputs.a[:, index].flatten(0, 1).T for index in range(len(inputs.b))]
    b = [weights.transpose(1, 2).reshape(-1, weights.shape[1]) for weights in inputs.b]
    adapters = torch.arange(point.distinct).repeat_interleave(rank)
    mask = (inputs.row_adapters[:, None] == adapters).to(point.torch_dtype) * inputs.scale

    def step(y: torch.Tensor) -> None:
        for index, (begin, end) in enumerate(inputs.bounds):
            y[:, begin:end].addmm_((inputs.x @ a[index]).mul_(mask), b[index])

    return step


def vllm_cpu(operations: Path) -> Prepare:
    """vLLM's CPU path: the calls of PunicaWrapperCPU.add_lora_linear on the functions of its own, unmodified file."""
    ops = _load_file(operations)

    def prepare(inputs: Inputs) -> Step:
        _check_gather(inputs)
        point, indices = inputs.point, inputs.row_adapters
        a = [inputs.a[:, index][:, None].contiguous() for index in range(len(inputs.b))]
        b = [weights[:, None] for weights in inputs.b]
        lengths = torch.full((point.distinct,), inputs.rows_each)
        starts = torch.arange(point.distinct) * inputs.rows_each
        prefill = (starts, lengths, torch.arange(point.distinct), point.distinct, inputs.rows_each, point.rows)

        def step(y: torch.Tensor) -> None:
            buffers = [torch.zeros(point.rows, point.rank) for _ in b]
            for index, buffer in enumerate(buffers):
                if inputs.rows_each == 1:
                    ops.bgmv_shrink(inputs.x, a[index], buffer, indices, inputs.scale)
                else:
                    ops.sgmv_shrink(inputs.x, a[index], buffer, *prefill, inputs.scale)
            for index, (begin, end) in enumerate(inputs.bounds):
                place = (begin, end - begin)
                if inputs.rows_each == 1:
                    ops.bgmv_expand_slice(buffers[index], b[index], y, indices, *place, add_inputs=True)
                else:
                    ops.sgmv_expand_slice(buffers[index], b[index], y, *prefill, *place, add_inputs=True)

        return step

    return prepare


def base_gemm(inputs: Inputs) -> Step:
    """The base model's own matmul of this site, for scale; no contender."""
    weight = torch.randn(inputs.point.shape.n, inputs.point.shape.k).to(inputs.point.torch_dtype)
    return lambda y: torch.nn.functional.linear(inputs.x, weight)


PEERS: dict[str, Prepare] = {
    "peft_loop": peft_loop,
    "grouped_mm": grouped_mm,
    "gathered_bmm": gathered_bmm,
    "all_slot_mask": all_slot_mask,
}


def _check_gather(inputs: Inputs) -> None:
    point = inputs.point
    size = point.weight_bytes // point.distinct * point.rows
    if size > MOST_GATHERED_BYTES:
        raise Unsupported(f"would gather {size >> 20} MiB of weights")


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("vllm_lora_ops", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"no such Python file: {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
