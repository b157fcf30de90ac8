"""Shrink fused with what makes its x: the norm before qkv and gate_up, the activation before down.

Where the backend has no such kernel the two run one after the other, with the same result.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from lora_kernels.errors import ShapeError
from lora_kernels.metadata import BatchMetadata
from lora_kernels.ops.apply import check_rows, find_site, lora_shrink
from lora_kernels.ops.backend import FusedBackend
from lora_kernels.storage import SiteStorage


def lora_norm_shrink(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, site: str, layer: int, meta: BatchMetadata
) -> torch.Tensor:
    """out = rmsnorm(x) · weight for every row; returns the v of out, for `lora_expand_planes` on the same site.

    out, x: [T, K] of one dtype, columns adjacent; weight: [K]; eps as in the norm. Rounded as Llama's norm: x/rms to
    x's dtype, then times weight (Zhang and Sennrich, arXiv 1910.07467).
    Raises TargetError, ShapeError, DtypeError or DeviceError before anything is written.
    """
    storage = _check(out, x, 1, site, layer, meta)
    if weight.shape != x.shape[1:]:
        raise ShapeError(f"weight: expected [{x.shape[1]}], got {tuple(weight.shape)}")
    backend = meta.pool.backend
    if meta.segments and isinstance(backend, FusedBackend):
        meta.wait_for_layer(layer)
        return backend.norm_shrink(out, x, weight, eps, storage, layer, meta)
    wide = x.float()
    torch.mul((wide * torch.rsqrt(wide.pow(2).mean(1, keepdim=True) + eps)).to(x.dtype), weight, out=out)
    return lora_shrink(out, site, layer, meta, _new_v(storage, meta))


def lora_silu_shrink(
    out: torch.Tensor, gate_up: torch.Tensor, site: str, layer: int, meta: BatchMetadata
) -> torch.Tensor:
    """out = silu(gate) · up for every row; returns the v of out, for `lora_expand_planes` on the same site.

    gate_up: [T, 2K], gate first; out: [T, K]; one dtype, columns adjacent (Shazeer, arXiv 2002.05202).
    Raises TargetError, ShapeError, DtypeError or DeviceError before anything is written.
    """
    storage = _check(out, gate_up, 2, site, layer, meta)
    backend = meta.pool.backend
    if meta.segments and isinstance(backend, FusedBackend):
        meta.wait_for_layer(layer)
        return backend.silu_shrink(out, gate_up, storage, layer, meta)
    gate, up = gate_up.chunk(2, 1)
    torch.mul(functional.silu(gate), up, out=out)
    return lora_shrink(out, site, layer, meta, _new_v(storage, meta))


def lora_expand_planes(v: torch.Tensor, site: str, layer: int, meta: BatchMetadata, y: torch.Tensor) -> torch.Tensor:
    """y[i] += v Bᵀ in place for the v that `lora_norm_shrink` or `lora_silu_shrink` returned. Returns y.

    The form of v is the backend's own. Raises TargetError, ShapeError, DtypeError or DeviceError.
    """
    storage = find_site(meta, site, layer)
    check_rows("y", y, meta, storage.spec.out_features)
    backend = meta.pool.backend
    if not meta.segments:
        return y
    if isinstance(backend, FusedBackend):
        backend.expand_planes(v, storage, layer, meta, y)
    else:
        backend.expand(v, storage, layer, meta, y)
    return y


def _check(out: torch.Tensor, x: torch.Tensor, parts: int, site: str, layer: int, meta: BatchMetadata) -> SiteStorage:
    storage = find_site(meta, site, layer)
    check_rows("out", out, meta, storage.spec.in_features)
    check_rows("x", x, meta, parts * storage.spec.in_features)
    if out.dtype != x.dtype or out.stride(1) != 1 or x.stride(1) != 1:
        raise ShapeError("out and x must have one dtype and adjacent columns")
    return storage


def _new_v(storage: SiteStorage, meta: BatchMetadata) -> torch.Tensor:
    ranks = meta.max_pages * meta.pool.spec.page_size
    return torch.empty(len(storage.spec.slices), meta.rows, ranks, device=meta.pool.device)
