"""Expand: y += v Bᵀ, many adapters in one launch; every y is read and written once, by one program.

First-write mode (ADD false) is for prefill, where reading y costs more than anything else here: y = ΔW x, zero in rows
without an adapter, and the base GEMM then accumulates onto it (`torch.addmm(y, x, w.T, out=y)`, beta = 1).
"""

from __future__ import annotations

import torch

from lora_kernels.batch import TILE_ROWS, Batch
from lora_kernels.ops.launch import (
    INTERPRETED,
    Launch,
    SitePlan,
    batch_arguments,
    planes_arguments,
    site_arguments,
)
from lora_kernels.ops.tile import dot
from lora_kernels.ops.triton_or_none import tl, triton
from lora_kernels.storage.site import SiteStorage

# Chosen from the compiled kernels, not from timings: no GPU was at hand. `python -m benchmarks.kernels.gpu_sweep`
# measures one and writes a file of its own into configs/. 80 to 168 registers: 3 to 6 programs fit a processor.
DECODE = Launch(block=128, warps=4, stages=2, programs=6)
PREFILL = Launch(block=128, warps=4, stages=2, programs=3)


def reference(v: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch, y: torch.Tensor) -> torch.Tensor:
    """Compute y[i] += v[s, i] B_sᵀ in place in plain torch, one adapter at a time, v as shrink's reference returns it.

    Each row is summed in float32 and rounded once; rows with slot -1 are not written. Returns y.
    """
    for _, rows, pages in storage.adapters(layer, batch):
        b = storage.b_of(layer, pages).float().flatten(0, 1)
        bounds = zip(storage.offsets, storage.offsets[1:], strict=False)
        delta = [v[s, rows, : len(b)] @ b[:, begin:end] for s, (begin, end) in enumerate(bounds)]
        y[rows] = (y[rows].float() + torch.cat(delta, dim=1)).to(y.dtype)
    return y


@triton.jit
def sum_planes(part, plane_stride, used, PLANES: tl.constexpr, INNER: tl.constexpr, PAGE: tl.constexpr):
    """Return the sum of v's planes at `part` [PAGE, rows], INNER to a group, in the order shrink would have added."""
    total = tl.zeros(part.shape, tl.float32)
    for outer in tl.static_range(0, PLANES, INNER):
        group = tl.zeros(part.shape, tl.float32)
        for inner in tl.static_range(0, INNER):
            group += tl.load(part + (outer + inner) * plane_stride, mask=used, other=0.0)
        total += group
    return total


@triton.jit
def load_page(site, page, column, end, n_size, PAGE: tl.constexpr):
    """Return B of one page at `column`, [PAGE, columns]; columns from `end` on are 0."""
    rank = tl.arange(0, PAGE)
    place = (page * PAGE + rank)[:, None] * n_size + column[None, :]
    return tl.load(site.weights + place, mask=(column < end)[None, :], other=0.0)


@triton.jit
def sum_pages(
    w,
    page,
    rows_of_v,
    used,
    slot,
    pages,
    column_slice,
    column,
    end,
    site,
    v,
    n_size,
    like,
    SLICES: tl.constexpr,
    PAGE: tl.constexpr,
    PLANES: tl.constexpr,
    INNER: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FP8: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Return the sum of v · B over the first `pages` pages of `slot`, in that order: float32 [BLOCK_N, TILE_ROWS].

    w, page: B of the slot's first page and its id; rows_of_v: pointers [PAGE, TILE_ROWS] to v of that page
    """
    acc = tl.zeros((BLOCK_N, TILE_ROWS), tl.float32)
    rank = tl.arange(0, PAGE)
    listed = slot * site.max_pages
    for place in range(0, pages):
        part = sum_planes(rows_of_v + place * PAGE, v.plane_stride, used[None, :], PLANES, INNER, PAGE)
        if PLANES > 1:
            part *= tl.load(site.page_scales + listed + place)
            if FP8:
                part *= tl.load(site.rank_scales + (page * SLICES + column_slice) * PAGE + rank)[:, None]
        more = place + 1 < pages
        page = tl.load(site.page_table + listed + place + 1, mask=more, other=0).to(tl.int64)
        following = load_page(site, page, column, tl.where(more, end, 0), n_size, PAGE)
        wide = w.to(like) if FP8 else w  # exact: every e4m3 number is one of the wider type
        acc = dot(tl.trans(wide), part.to(wide.dtype), acc, UPCAST)
        w = following
    return acc


@triton.jit
def zero_base_rows(y, y_stride, batch, blocks, block_count, TILE_ROWS: tl.constexpr, BLOCK_N: tl.constexpr):
    """Write 0 into the rows of y that have no adapter."""
    t = tl.arange(0, TILE_ROWS)
    rows = tl.load(batch.counts)
    row_blocks = (rows + TILE_ROWS - 1) // TILE_ROWS
    for index in range(tl.program_id(0), row_blocks * block_count, tl.num_programs(0)):
        block = blocks + index % block_count * 3
        row = index // block_count * TILE_ROWS + t
        base = tl.load(batch.row_slots + row, mask=row < rows, other=0) < 0
        column = tl.load(block + 1) + tl.arange(0, BLOCK_N)
        mask = (column < tl.load(block + 2))[:, None] & base[None, :]
        out = y + row.to(tl.int64)[None, :] * y_stride + column[:, None]
        tl.store(out, tl.zeros((BLOCK_N, TILE_ROWS), y.dtype.element_ty), mask=mask)


@triton.jit
def expand_kernel(
    y,
    y_stride,
    site,
    batch,
    v,
    blocks,
    block_count,
    n_size,
    SLICES: tl.constexpr,
    PAGE: tl.constexpr,
    PLANES: tl.constexpr,
    INNER: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ALIGN: tl.constexpr,
    ADD: tl.constexpr,
    FP8: tl.constexpr,
    PDL: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One unit of work is a block of columns of a tile of rows; `blocks` lists (slice, first column, end of its slice).

    y [T, N], rows y_stride apart; site, batch, v: see launch.py, the weights [pages, PAGE, N], v as shrink left it in
    PLANES planes, raw sums where they are several. Columns stand on the M side and tokens on N, as in shrink.
    ALIGN: a power of 2 that divides every slice's first column.
    """
    t = tl.arange(0, TILE_ROWS)
    count = tl.load(batch.counts + 3) * block_count
    for index in range(tl.program_id(0), count, tl.num_programs(0)):
        tile = batch.tiles + index // block_count * 3
        block = blocks + index % block_count * 3
        slot = tl.load(tile + 2)
        column_slice = tl.load(block)
        first_column = tl.multiple_of(tl.load(block + 1), ALIGN)
        end = tl.multiple_of(tl.load(block + 2), ALIGN)
        column = first_column + tl.arange(0, BLOCK_N)
        page = tl.load(site.page_table + slot * site.max_pages).to(tl.int64)
        used = t < tl.load(tile + 1)
        row = tl.load(batch.row_order + tl.load(tile) + t, mask=used, other=0).to(tl.int64)
        # Weights do not depend on shrink: the first page is on its way while shrink still runs. A slot without pages
        # lists the pool's zero page, which is never used then.
        w = load_page(site, page, column, end, n_size, PAGE)
        if PDL:
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
        pages = tl.load(site.live + slot)
        if pages > 0 or not ADD:
            out = y + row[None, :] * y_stride + column[:, None]
            mask = (column < end)[:, None] & used[None, :]
            if ADD:
                old = tl.load(out, mask=mask, other=0.0).to(tl.float32)
            rows_of_v = v.data + column_slice.to(tl.int64) * v.slice_stride + row[None, :] * v.row_stride
            acc = sum_pages(
                w,
                page,
                rows_of_v + tl.arange(0, PAGE)[:, None],
                used,
                slot,
                pages,
                column_slice,
                column,
                end,
                site,
                v,
                n_size,
                y.dtype.element_ty,
                SLICES,
                PAGE,
                PLANES,
                INNER,
                TILE_ROWS,
                BLOCK_N,
                FP8,
                UPCAST,
            )
            if ADD:
                acc += old
            tl.store(out, acc.to(y.dtype.element_ty), mask=mask)
    if not ADD:
        if PDL:
            tl.extra.cuda.gdc_wait()
        zero_base_rows(y, y_stride, batch, blocks, block_count, TILE_ROWS, BLOCK_N)


def launch_expand(
    v: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch, y: torch.Tensor, plan: SitePlan, *, add: bool
) -> None:
    """Compute y [T, N] += v Bᵀ, or y = v Bᵀ and 0 in rows without an adapter; v as `launch_shrink` leaves it."""
    launch = plan.config.expand if batch.tile_rows == TILE_ROWS else plan.config.prefill_expand
    b = storage.b[layer]
    blocks = column_blocks(storage, launch.block)
    tiles = len(batch.tiles) // 3 + (0 if add else -(-batch.rows // batch.tile_rows))
    expand_kernel[plan.grid(launch, tiles * len(blocks))](
        y,
        y.stride(0),
        site_arguments(storage, layer, b),
        batch_arguments(batch),
        planes_arguments(v),
        blocks,
        len(blocks),
        b.shape[2],
        **expand_sizes(storage, batch.tile_rows, len(v), plan, launch, add=add),
    )


def column_blocks(storage: SiteStorage, width: int) -> torch.Tensor:
    """Return blocks of columns that never cross a slice, int32 [blocks, 3]: slice, first column, end of the slice."""
    key = ("blocks", width)
    blocks = storage.cache.get(key)
    if not isinstance(blocks, torch.Tensor):
        bounds = zip(storage.offsets, storage.offsets[1:], strict=False)
        listed = [(s, first, end) for s, (begin, end) in enumerate(bounds) for first in range(begin, end, width)]
        blocks = torch.tensor(listed, dtype=torch.int32, device=storage.a.device)
        storage.cache[key] = blocks
    return blocks


def expand_sizes(
    storage: SiteStorage, tile_rows: int, planes: int, plan: SitePlan, launch: Launch, *, add: bool
) -> dict[str, int | bool]:
    """Return the compile-time arguments and compiler options of expand."""
    config = plan.config
    return {
        "SLICES": len(storage.spec.slices),
        "PAGE": storage.b.shape[2],
        "PLANES": planes,
        "INNER": config.inner if planes == config.split else 1,
        "TILE_ROWS": tile_rows,
        "BLOCK_N": launch.block,
        "ALIGN": plan.align,
        "ADD": add,
        "FP8": storage.rank_scales is not None,
        "PDL": plan.pdl,
        "UPCAST": INTERPRETED,
        **plan.options(launch),
    }
