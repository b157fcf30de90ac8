"""The truth in tests: plain torch in float32, one adapter at a time, on any device."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lora_kernels.metadata import BatchMetadata


def lora_shrink(x: torch.Tensor, site: str, layer: int, meta: BatchMetadata) -> torch.Tensor:
    """v[s, i] = scale · x[i] A_sᵀ as float32 [slices, T, max_pages · page_size]; zero where a row has no such rank.

    With 8-bit pages v carries the scales of both a and b, as the backends' does.
    """
    storage, size = meta.pool.site(site), meta.pool.spec.page_size
    v = torch.zeros(len(storage.spec.slices), meta.rows, meta.max_pages * size, device=x.device)
    for slot, rows, pages in _adapters(site, layer, meta):
        # [pages, slices, page_size, K] -> [slices, ranks, K]
        a = storage.a_of(layer, pages)[..., : storage.spec.in_features].float().transpose(0, 1).flatten(1, 2)
        scales = meta.pool.page_scales[slot, : len(pages)].repeat_interleave(size)
        factors = scales if storage.rank_scales is None else scales * _rank_scales(storage.rank_scales[layer, pages])
        v[:, rows, : len(scales)] = x[rows].float() @ a.transpose(1, 2) * factors
    return v


def lora_apply(y: torch.Tensor, x: torch.Tensor, site: str, layer: int, meta: BatchMetadata) -> torch.Tensor:
    """y[i] += scale · (x[i] Aᵀ) Bᵀ in place, each row summed in float32 and rounded once. Returns y.

    y [T, N] and x [T, K] of any floating dtype; rows with slot -1 are not written.
    """
    storage = meta.pool.site(site)
    v = lora_shrink(x, site, layer, meta)
    for _, rows, pages in _adapters(site, layer, meta):
        b = storage.b_of(layer, pages).float().flatten(0, 1)
        bounds = zip(storage.offsets, storage.offsets[1:], strict=False)
        delta = [v[s, rows, : len(b)] @ b[:, begin:end] for s, (begin, end) in enumerate(bounds)]
        y[rows] = (y[rows].float() + torch.cat(delta, dim=1)).to(y.dtype)
    return y


def lora_embed(y: torch.Tensor, tokens: torch.Tensor, site: str, layer: int, meta: BatchMetadata) -> torch.Tensor:
    """y[i] += scale · B A[:, tokens[i]] in place: `lora_apply` to one-hot rows. Returns y."""
    one_hot = torch.nn.functional.one_hot(tokens.long(), meta.pool.site(site).spec.in_features)
    return lora_apply(y, one_hot.float(), site, layer, meta)


def _rank_scales(of_pages: torch.Tensor) -> torch.Tensor:
    """[pages, slices, page_size] -> [slices, 1, ranks]"""
    return of_pages.transpose(0, 1).flatten(1)[:, None]


def _adapters(site: str, layer: int, meta: BatchMetadata) -> Iterator[tuple[int, torch.Tensor, list[int]]]:
    """Slot, row ids and page ids of each adapter of the batch that has any page for this site and layer."""
    pool = meta.pool
    for segment in meta.segments:
        pages = pool.page_table[segment.slot, : int(pool.site(site).live[layer, segment.slot])].tolist()
        if pages:
            yield segment.slot, torch.nonzero(meta.row_slots == segment.slot).flatten(), pages
