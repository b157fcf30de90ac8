"""The Triton kernels as a backend. No host synchronisation, so every call can be captured in a CUDA graph."""

from __future__ import annotations

import torch

from lora_kernels.batch import Batch
from lora_kernels.ops import torch_path
from lora_kernels.ops.expand import launch_expand
from lora_kernels.ops.shrink import launch_shrink, new_planes, planes_for
from lora_kernels.ops.tuning import plan_for
from lora_kernels.storage.site import SiteStorage

NAME = "triton"
NEEDS_UNITS = True
IN_BLOCKS = False
copy = torch_path.copy


def apply(y: torch.Tensor, x: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch) -> None:
    """Compute y [T, N] += scale · (x [T, K] Aᵀ) Bᵀ; v is float32 in between."""
    _apply(y, x, storage, layer, batch, add=True)


def write(y: torch.Tensor, x: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch) -> None:
    """Compute y [T, N] = scale · (x Aᵀ) Bᵀ, and 0 in rows without an adapter: y is not read, nor zeroed before."""
    _apply(y, x, storage, layer, batch, add=False)


def shrink(x: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch, v: torch.Tensor) -> None:
    """Compute v float32 [slices, T, R] = scale · x Aᵀ, written where a row has ranks."""
    if v.stride(2) != 1:
        torch_path.shrink(x, storage, layer, batch, v)
        return
    launch_shrink(_adjacent(x), storage, layer, batch, v[None], plan_for(storage))


def expand(v: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch, y: torch.Tensor) -> None:
    """Compute y [T, N] += v Bᵀ, slice by slice."""
    if v.stride(2) != 1 or y.stride(1) != 1:
        torch_path.expand(v, storage, layer, batch, y)
        return
    launch_expand(v[None], storage, layer, batch, y, plan_for(storage), add=True)


def _apply(y: torch.Tensor, x: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch, *, add: bool) -> None:
    if y.stride(1) != 1:
        adjacent = y.contiguous()
        _apply(adjacent, x, storage, layer, batch, add=add)
        y.copy_(adjacent)
        return
    plan = plan_for(storage)
    v = new_planes(storage, batch, planes_for(plan.config, batch.rows))
    launch_shrink(_adjacent(x), storage, layer, batch, v, plan)
    launch_expand(v, storage, layer, batch, y, plan, add=add)


def _adjacent(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(1) == 1 else x.contiguous()
