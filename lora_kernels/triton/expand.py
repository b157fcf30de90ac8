"""Expand: y += v Bᵀ, many adapters in one launch; every y is read and written once, by one program.

First-write mode (ADD false) is for prefill, where reading y costs more than anything else here: y = ΔW x, zero in rows
without an adapter, and the base GEMM then accumulates onto it (`torch.addmm(y, x, w.T, out=y)`, beta = 1).
"""

from __future__ import annotations

import triton
import triton.language as tl

from lora_kernels.triton.tile import dot, sum_planes


@triton.jit
def expand_kernel(
    v,
    v_row,
    v_slice,
    v_plane,
    b,
    rank_scales,
    y,
    y_stride,
    tiles,
    counts,
    row_order,
    row_slots,
    page_table,
    page_scales,
    live,
    blocks,
    block_count,
    n_size,
    max_pages,
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

    v as shrink left it in PLANES planes, raw sums where they are several; b [pages, PAGE, N]; y [T, N] rows y_stride
    apart; rank_scales float32 [pages, SLICES, PAGE] if FP8. Columns stand on the M side and tokens on N, as in shrink.
    Pages are added in page-table order. ALIGN: a power of 2 that divides every slice's first column.
    """
    rank = tl.arange(0, PAGE)
    t = tl.arange(0, TILE_ROWS)
    count = tl.load(counts + 3) * block_count
    for index in range(tl.program_id(0), count, tl.num_programs(0)):
        tile = tiles + index // block_count * 3
        block = blocks + index % block_count * 3
        slot = tl.load(tile + 2)
        column_slice = tl.load(block)
        first_column = tl.multiple_of(tl.load(block + 1), ALIGN)
        end = tl.multiple_of(tl.load(block + 2), ALIGN)
        column = first_column + tl.arange(0, BLOCK_N)
        inside = column < end
        pages = tl.load(live + slot)
        page = tl.load(page_table + slot * max_pages).to(tl.int64)
        used = t < tl.load(tile + 1)
        row = tl.load(row_order + tl.load(tile) + t, mask=used, other=0).to(tl.int64)
        # Weights do not depend on shrink: the first page is on its way while shrink still runs. A slot without pages
        # lists the pool's zero page, which is never used then.
        w = tl.load(b + (page * PAGE + rank)[:, None] * n_size + column[None, :], mask=inside[None, :], other=0.0)
        if PDL:
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
        if pages > 0 or not ADD:
            out = y + row[None, :] * y_stride + column[:, None]
            mask = inside[:, None] & used[None, :]
            if ADD:
                old = tl.load(out, mask=mask, other=0.0).to(tl.float32)
            acc = tl.zeros((BLOCK_N, TILE_ROWS), tl.float32)
            rows_of_v = v + column_slice.to(tl.int64) * v_slice + row[None, :] * v_row + rank[:, None]
            for place in range(0, pages):
                part = sum_planes(
                    rows_of_v + place * PAGE, v_plane, used[None, :], PLANES, INNER, PAGE, TILE_ROWS
                )  # fmt: skip
                if PLANES > 1:
                    part *= tl.load(page_scales + slot * max_pages + place)
                    if FP8:
                        factors = tl.load(rank_scales + (page * SLICES + column_slice) * PAGE + rank)
                        part *= factors[:, None]
                more = place + 1 < pages
                page = tl.load(page_table + slot * max_pages + place + 1, mask=more, other=0).to(tl.int64)
                inside_if_more = column < tl.where(more, end, 0)
                following = tl.load(
                    b + (page * PAGE + rank)[:, None] * n_size + column[None, :],
                    mask=inside_if_more[None, :],
                    other=0.0,
                )
                wide = w.to(y.dtype.element_ty) if FP8 else w  # exact: every e4m3 number is one of the wider type
                part = part.to(wide.dtype)
                acc = dot(tl.trans(wide), part, acc, UPCAST)
                w = following
            if ADD:
                acc += old
            tl.store(out, acc.to(y.dtype.element_ty), mask=mask)
    if not ADD:
        if PDL:
            tl.extra.cuda.gdc_wait()
        row_blocks = (tl.load(counts) + TILE_ROWS - 1) // TILE_ROWS
        for index in range(tl.program_id(0), row_blocks * block_count, tl.num_programs(0)):
            block = blocks + index % block_count * 3
            row = index // block_count * TILE_ROWS + t
            base = tl.load(row_slots + row, mask=row < tl.load(counts), other=0) < 0
            column = tl.load(block + 1) + tl.arange(0, BLOCK_N)
            mask = (column < tl.load(block + 2))[:, None] & base[None, :]
            out = y + row.to(tl.int64)[None, :] * y_stride + column[:, None]
            tl.store(out, tl.zeros((BLOCK_N, TILE_ROWS), y.dtype.element_ty), mask=mask)
