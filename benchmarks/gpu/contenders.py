"""The contenders on a GPU. Each maker lays the weights out its own way, beforehand, and returns a call for one layer.

A call adds the adapters' part to y in place and can be captured in a CUDA graph. What a serving engine prepares once a
step (metadata, routes, permutations) is prepared outside the graph, for everyone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

import torch

from benchmarks.gpu.grid import GpuInputs
from benchmarks.gpu.wheels import load_sglang, load_vllm
from lora_kernels import AdapterPool, BatchMetadata, LoraPair, MetadataBuffers, PoolSpec, lora_apply

Call = Callable[[int, torch.Tensor], object]
# SGLang's default --max-lora-chunk-size.
CSGMV_CHUNK = 16


def ours(inputs: GpuInputs) -> Call:
    """lora_apply over a pool of as many layers."""
    spec = PoolSpec((inputs.point.spec,), inputs.layers, max_rank=max(64, *inputs.ranks))
    pages = sum(-(-rank // spec.page_size) for rank in inputs.ranks)
    pool = AdapterPool(spec, pages, len(inputs.ranks), inputs.x.dtype, inputs.x.device, backend="triton")
    for adapter in range(len(inputs.ranks)):
        pool.load(
            adapter,
            {
                (layer, inputs.point.site, index): LoraPair(
                    inputs.a[layer][adapter][index], inputs.b[layer][adapter][begin:end], 1.0
                )
                for layer in range(inputs.layers)
                for index, (begin, end) in enumerate(inputs.bounds)
            },
        )
    buffers = MetadataBuffers(len(inputs.rows), len(inputs.rows), inputs.x.device, max_pages=spec.max_pages)
    meta = BatchMetadata.build(inputs.rows, [1] * len(inputs.rows), pool, buffers)
    return lambda layer, y: lora_apply(y, inputs.x, inputs.point.site, layer, meta)


def vllm(inputs: GpuInputs) -> Call:
    """vLLM's lora_shrink and lora_expand: every slot padded to the largest rank."""
    peer = _vllm()
    rank, bounds = max(inputs.ranks), inputs.bounds
    a = [
        [_pad(inputs, layer, rank)[0][:, index].contiguous() for index in range(len(bounds))]
        for layer in _layers(inputs)
    ]
    b = [[_pad(inputs, layer, rank)[1][:, i:j].contiguous() for i, j in bounds] for layer in _layers(inputs)]
    meta = peer.Meta.make(len(inputs.ranks), len(inputs.rows), inputs.x.device)
    meta.prepare_tensors(torch.tensor(inputs.rows, dtype=torch.int32, device=inputs.x.device))
    arguments = meta.meta_args(len(inputs.rows), False)
    v = torch.empty(len(bounds), len(inputs.rows), rank, device=inputs.x.device)

    def call(layer: int, y: torch.Tensor) -> None:
        peer.shrink(inputs.x, a[layer], v, *arguments, 1.0)
        peer.expand(v, b[layer], y, *arguments, offset_start=0, add_inputs=True)

    return call


def csgmv(inputs: GpuInputs) -> Call:
    """SGLang's chunked SGMV."""
    peer, device = _sglang(), inputs.x.device
    a, b = _packed(inputs)
    rows = torch.tensor(inputs.rows, device=device)
    order = torch.argsort(rows, stable=True)
    counts = torch.bincount(rows, minlength=len(inputs.ranks)).tolist()
    chunks = [
        (adapter, min(CSGMV_CHUNK, count - first))
        for adapter, count in enumerate(counts)
        for first in range(0, count, CSGMV_CHUNK)
    ]
    starts = torch.tensor([0, *(rows for _, rows in chunks)], device=device).cumsum(0).int()
    batch = SimpleNamespace(
        max_len=CSGMV_CHUNK,
        num_segments=len(chunks),
        use_cuda_graph=True,
        weight_indices=torch.tensor([adapter for adapter, _ in chunks], dtype=torch.int32, device=device),
        seg_indptr=starts,
        lora_ranks=torch.tensor(inputs.ranks, dtype=torch.int32, device=device),
        scalings=torch.ones(len(inputs.ranks), device=device),
        permutation=order.int(),
    )
    bounds = inputs.bounds
    offsets = torch.tensor([0, *(end for _, end in bounds)], dtype=torch.int32)
    on_device, widest = offsets.to(device), max(end - begin for begin, end in bounds)

    def call(layer: int, y: torch.Tensor) -> None:
        v = peer.shrink(inputs.x, a[layer], batch, len(bounds))
        peer.expand(v, b[layer], batch, on_device, widest, y, slice_offsets_cpu=offsets)

    return call


def triton_v2(inputs: GpuInputs) -> Call:
    """SGLang's triton_v2 with the plan that its own table gives."""
    peer, device = _sglang(), inputs.x.device
    a, b = _packed(inputs)
    runner = peer.Runner(peer.Workspace(), max_loras=len(inputs.ranks), device=device)
    runner.begin_batch(
        token_slots=torch.tensor(inputs.rows, dtype=torch.int32, device=device),
        lora_ranks=torch.tensor(inputs.ranks, dtype=torch.int32, device=device),
        scalings=torch.ones(len(inputs.ranks), device=device),
        num_tokens=len(inputs.rows),
        phase=peer.Phase.DECODE,
        graph_mode=device.type == "cuda",
    )
    spec = inputs.point.spec
    plan = runner.plan_for(
        peer.Kind.LINEAR, max(inputs.ranks), spec.in_features, spec.out_features, num_tokens=len(inputs.rows)
    )
    offsets = (0, *(end for _, end in inputs.bounds))

    def call(layer: int, y: torch.Tensor) -> None:
        bridge = runner.run_a(inputs.x, a[layer], stack=len(spec.slices), plan=plan)
        runner.run_b(bridge, b[layer], y, offsets=offsets, plan=plan)

    return call


CONTENDERS: dict[str, Callable[[GpuInputs], Call]] = {
    "ours": ours,
    "vllm": vllm,
    "csgmv": csgmv,
    "triton_v2": triton_v2,
}


@cache
def _vllm() -> SimpleNamespace:
    return load_vllm()


@cache
def _sglang() -> SimpleNamespace:
    return load_sglang()


def _layers(inputs: GpuInputs) -> range:
    return range(inputs.layers)


def _pad(inputs: GpuInputs, layer: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """a [D, slices, rank, K] and b [D, N, rank], zero beyond each adapter's own rank."""
    spec, like = inputs.point.spec, inputs.x
    a = like.new_zeros(len(inputs.ranks), len(spec.slices), rank, spec.in_features)
    b = like.new_zeros(len(inputs.ranks), spec.out_features, rank)
    for adapter, own in enumerate(inputs.ranks):
        a[adapter, :, :own] = inputs.a[layer][adapter]
        b[adapter, :, :own] = inputs.b[layer][adapter]
    return a, b


def _packed(inputs: GpuInputs) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """SGLang's layout: a [D, slices · R, K] whose first slices · r rows are an adapter's slices one after another."""
    rank, spec = max(inputs.ranks), inputs.point.spec
    all_a, all_b = [], []
    for layer in _layers(inputs):
        a = inputs.x.new_zeros(len(inputs.ranks), len(spec.slices) * rank, spec.in_features)
        for adapter, own in enumerate(inputs.ranks):
            a[adapter, : len(spec.slices) * own] = inputs.a[layer][adapter].flatten(0, 1)
        all_a.append(a)
        all_b.append(_pad(inputs, layer, rank)[1])
    return all_a, all_b
