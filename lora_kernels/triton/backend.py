"""The Triton kernels as a backend. No host synchronisation, so every call can be captured in a CUDA graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lora_kernels.ops import torch_path
from lora_kernels.triton.launch import (
    launch_embed,
    launch_expand,
    launch_shrink,
    plan_for,
    planes_for,
    scratch,
)

if TYPE_CHECKING:
    from lora_kernels.metadata import BatchMetadata
    from lora_kernels.storage import SiteStorage

NEEDS_UNITS = True
IN_BLOCKS = False
copy = torch_path.copy


def apply(y: torch.Tensor, x: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata) -> None:
    """y [T, N] += scale · (x [T, K] Aᵀ) Bᵀ; v is float32 in between."""
    _apply(y, x, storage, layer, meta, add=True)


def write(y: torch.Tensor, x: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata) -> None:
    """y [T, N] = scale · (x [T, K] Aᵀ) Bᵀ, and 0 in rows without an adapter: y need not be read, nor zeroed before."""
    _apply(y, x, storage, layer, meta, add=False)


def shrink(x: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata, v: torch.Tensor) -> None:
    """v float32 [slices, T, R] = scale · x Aᵀ, written where a row has ranks."""
    if v.stride(2) != 1:
        torch_path.shrink(x, storage, layer, meta, v)
        return
    launch_shrink(_adjacent(x), storage, layer, meta, v[None], plan_for(storage, x.device))


def expand(v: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata, y: torch.Tensor) -> None:
    """y [T, N] += v Bᵀ, slice by slice."""
    if v.stride(2) != 1 or y.stride(1) != 1:
        torch_path.expand(v, storage, layer, meta, y)
        return
    launch_expand(v[None], storage, layer, meta, y, plan_for(storage, y.device), add=True)


def embed(y: torch.Tensor, tokens: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata) -> None:
    """y [T, N] += scale · B A[:, tokens]; tokens int32 or int64 [T], within the site's in_features."""
    plan = plan_for(storage, y.device)
    v = scratch(storage, meta, 1, y.device)
    launch_embed(tokens.contiguous(), storage, layer, meta, v, plan)
    expand(v[0], storage, layer, meta, y)


def _apply(
    y: torch.Tensor, x: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata, *, add: bool
) -> None:
    if y.stride(1) != 1:
        adjacent = y.contiguous()
        _apply(adjacent, x, storage, layer, meta, add=add)
        y.copy_(adjacent)
        return
    plan = plan_for(storage, x.device)
    v = scratch(storage, meta, planes_for(plan, meta.rows), x.device)
    launch_shrink(_adjacent(x), storage, layer, meta, v, plan)
    launch_expand(v, storage, layer, meta, y, plan, add=add)


def _adjacent(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(1) == 1 else x.contiguous()
