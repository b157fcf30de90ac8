"""The truth in tests: plain torch in float32, one adapter and one page at a time, on any device."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lora_kernels.metadata import BatchMetadata


def lora_shrink(x: torch.Tensor, site: str, layer: int, meta: BatchMetadata) -> torch.Tensor:
    """v[s, i] = scale · x[i] A_sᵀ as float32 [slices, T, max_pages · page_size]; zero where a row has no such rank."""
    storage, size = meta.pool.site(site), meta.pool.spec.page_size
    v = torch.zeros(len(storage.spec.slices), meta.rows, meta.max_pages * size, device=x.device)
    for rows, index, page, scale in _pages(site, layer, meta):
        a = storage.a[layer, page, :, :, : storage.spec.in_features].float()
        v[:, rows, index * size : (index + 1) * size] = scale * (x[rows].float() @ a.transpose(1, 2))
    return v


def lora_apply(y: torch.Tensor, x: torch.Tensor, site: str, layer: int, meta: BatchMetadata) -> torch.Tensor:
    """y[i] += Σ_pages scale · (x[i] Aᵀ) Bᵀ in place, each row summed in float32 and rounded once. Returns y.

    y [T, N] and x [T, K] of any floating dtype; rows with slot -1 are not written.
    """
    storage, size = meta.pool.site(site), meta.pool.spec.page_size
    v = lora_shrink(x, site, layer, meta)
    delta = torch.zeros(meta.rows, storage.spec.out_features, device=x.device)
    for rows, index, page, _ in _pages(site, layer, meta):
        b = storage.b[layer, page].float()
        for s, (begin, end) in enumerate(zip(storage.offsets, storage.offsets[1:], strict=False)):
            delta[rows, begin:end] += v[s, rows, index * size : (index + 1) * size] @ b[:, begin:end]
    adapted = meta.row_slots >= 0
    y[adapted] = (y[adapted].float() + delta[adapted]).to(y.dtype)
    return y


def _pages(site: str, layer: int, meta: BatchMetadata) -> Iterator[tuple[torch.Tensor, int, int, float]]:
    """Row ids of one adapter with the place, id and scale of one of its pages."""
    pool = meta.pool
    for segment in meta.segments:
        rows = torch.nonzero(meta.row_slots == segment.slot).flatten()
        for index in range(int(pool.site(site).live[layer, segment.slot])):
            yield rows, index, int(pool.page_table[segment.slot, index]), float(pool.page_scales[segment.slot, index])
