"""The truth in tests: plain torch in float32, one row and one page at a time, on any device."""

from __future__ import annotations

import torch

from lora_kernels.metadata import BatchMetadata


def lora_shrink(x: torch.Tensor, site: str, layer: int, meta: BatchMetadata) -> torch.Tensor:
    """v[s, i] = scale · x[i] A_sᵀ as float32 [slices, T, max_pages · page_size]; zero where a row has no such rank."""
    pool, storage = meta.pool, meta.pool.site(site)
    size = pool.spec.page_size
    v = torch.zeros(len(storage.spec.slices), meta.rows, meta.max_pages * size, device=x.device)
    for row, slot in enumerate(meta.row_slots.tolist()):
        for index in range(_live(meta, site, layer, slot)):
            a = storage.a[layer, int(pool.page_table[slot, index]), :, :, : storage.spec.in_features].float()
            v[:, row, index * size : (index + 1) * size] = pool.page_scales[slot, index] * (a @ x[row].float())
    return v


def lora_apply(y: torch.Tensor, x: torch.Tensor, site: str, layer: int, meta: BatchMetadata) -> torch.Tensor:
    """y[i] += Σ_pages scale · (x[i] Aᵀ) Bᵀ in place, each row summed in float32 and rounded once. Returns y.

    y [T, N] and x [T, K] of any floating dtype; rows with slot -1 are not written.
    """
    pool, storage = meta.pool, meta.pool.site(site)
    size = pool.spec.page_size
    v = lora_shrink(x, site, layer, meta)
    for row, slot in enumerate(meta.row_slots.tolist()):
        pages = _live(meta, site, layer, slot)
        if not pages:
            continue
        delta = torch.zeros(storage.spec.out_features, device=x.device)
        for index in range(pages):
            b = storage.b[layer, int(pool.page_table[slot, index])].float()
            for s, (begin, end) in enumerate(zip(storage.offsets, storage.offsets[1:], strict=False)):
                delta[begin:end] += v[s, row, index * size : (index + 1) * size] @ b[:, begin:end]
        y[row] = (y[row].float() + delta).to(y.dtype)
    return y


def _live(meta: BatchMetadata, site: str, layer: int, slot: int) -> int:
    return 0 if slot < 0 else int(meta.pool.site(site).live[layer, slot])
