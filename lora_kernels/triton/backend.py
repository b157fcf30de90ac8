"""The Triton kernels as a backend: launch sizes and scratch. No host synchronisation, so calls can be captured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lora_kernels.metadata import TILE_ROWS
from lora_kernels.ops import torch_path
from lora_kernels.ops.backend import triton_is_interpreted
from lora_kernels.triton.expand import BLOCK_N, expand_kernel
from lora_kernels.triton.shrink import BLOCK_K, shrink_kernel

if TYPE_CHECKING:
    from lora_kernels.metadata import BatchMetadata
    from lora_kernels.pool import SiteStorage

INTERPRETED = triton_is_interpreted()
NEEDS_UNITS = False
# A grid is fixed at launch while the work is counted on the device: enough programs to fill the widest GPUs twice.
MAX_PROGRAMS = 264
# Key of SiteStorage.cache; layers, which other backends use as keys, are never negative.
_BLOCKS = -1


def apply(y: torch.Tensor, x: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata) -> None:
    """y [T, N] += scale · (x [T, K] Aᵀ) Bᵀ; v is float32 in between."""
    ranks = meta.pool.spec.max_pages * meta.pool.spec.page_size
    v = torch.empty(len(storage.spec.slices), meta.rows, ranks, device=x.device)
    shrink(x, storage, layer, meta, v)
    expand(v, storage, layer, meta, y)


def shrink(x: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata, v: torch.Tensor) -> None:
    """v float32 [slices, T, R] = scale · x Aᵀ, written where a row has ranks."""
    if v.stride(2) != 1:
        torch_path.shrink(x, storage, layer, meta, v)
        return
    x = x if x.stride(1) == 1 else x.contiguous()
    pool, a = meta.pool, storage.a[layer]
    max_pages = pool.spec.max_pages
    shrink_kernel[_grid(meta, max_pages)](
        x, x.stride(0), a, v, v.stride(1), v.stride(0),
        meta.tiles, meta.counts, meta.row_order, pool.page_table, pool.page_scales, storage.live[layer],
        storage.spec.in_features, a.shape[3], max_pages,
        SLICES=a.shape[1], PAGE=a.shape[2], TILE_ROWS=TILE_ROWS, BLOCK_K=BLOCK_K, UPCAST=INTERPRETED,
    )  # fmt: skip


def expand(v: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata, y: torch.Tensor) -> None:
    """y [T, N] += v Bᵀ, slice by slice."""
    if v.stride(2) != 1 or y.stride(1) != 1:
        torch_path.expand(v, storage, layer, meta, y)
        return
    pool, b, blocks = meta.pool, storage.b[layer], _blocks(storage)
    expand_kernel[_grid(meta, len(blocks))](
        v, v.stride(1), v.stride(0), b, y, y.stride(0),
        meta.tiles, meta.counts, meta.row_order, pool.page_table, storage.live[layer],
        blocks, len(blocks), b.shape[2], pool.spec.max_pages,
        PAGE=b.shape[1], TILE_ROWS=TILE_ROWS, BLOCK_N=BLOCK_N, UPCAST=INTERPRETED,
    )  # fmt: skip


def _grid(meta: BatchMetadata, units_per_tile: int) -> tuple[int]:
    """Programs for as many tiles as the metadata's buffers can hold, so that the grid does not depend on the batch."""
    return (max(1, min(MAX_PROGRAMS, len(meta.tiles) // 3 * units_per_tile)),)


def _blocks(storage: SiteStorage) -> torch.Tensor:
    """Blocks of columns that never cross a slice, int32 [blocks, 3]: slice, first column, end of the slice."""
    blocks = storage.cache.get(_BLOCKS)
    if not isinstance(blocks, torch.Tensor):
        bounds = zip(storage.offsets, storage.offsets[1:], strict=False)
        listed = [(s, first, end) for s, (begin, end) in enumerate(bounds) for first in range(begin, end, BLOCK_N)]
        blocks = torch.tensor(listed, dtype=torch.int32, device=storage.a.device)
        storage.cache[_BLOCKS] = blocks
    return blocks
