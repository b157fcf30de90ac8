"""Expand: y += v Bᵀ, many adapters in one launch; every y is read and written once, by one program."""

from __future__ import annotations

import triton
import triton.language as tl

# Columns of y a unit: 128 bytes of bfloat16 a row.
BLOCK_N = 64


@triton.jit
def expand_kernel(
    v,
    v_row,
    v_slice,
    b,
    y,
    y_stride,
    tiles,
    counts,
    row_order,
    page_table,
    live,
    blocks,
    block_count,
    n_size,
    max_pages,
    PAGE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One unit is a block of columns of a tile of rows; `blocks` lists (slice, first column, end of its slice).

    Pages are added in page-table order, so the bits do not depend on the batch. UPCAST as in shrink.
    """
    units = tl.load(counts + 3) * block_count
    for unit in range(tl.program_id(0), units, tl.num_programs(0)):
        tile = tiles + unit // block_count * 3
        block = blocks + unit % block_count * 3
        slot = tl.load(tile + 2)
        pages = tl.load(live + slot)
        if pages > 0:
            m = tl.arange(0, TILE_ROWS)
            used = m < tl.load(tile + 1)
            row = tl.load(row_order + tl.load(tile) + m, mask=used, other=0).to(tl.int64)
            column = tl.load(block + 1) + tl.arange(0, BLOCK_N)
            inside = column < tl.load(block + 2)
            rank = tl.arange(0, PAGE)
            rows_of_v = v + tl.load(block) * v_slice + row[:, None] * v_row
            acc = tl.zeros((TILE_ROWS, BLOCK_N), tl.float32)
            for place in range(0, pages):
                page = tl.load(page_table + slot * max_pages + place).to(tl.int64)
                weights = b + (page * PAGE + rank[:, None]) * n_size + column[None, :]
                w = tl.load(weights, mask=inside[None, :], other=0.0)
                part = tl.load(rows_of_v + place * PAGE + rank[None, :], mask=used[:, None], other=0.0)
                if UPCAST:
                    acc += tl.dot(part, w.to(tl.float32), input_precision="ieee")
                else:
                    acc += tl.dot(part.to(w.dtype), w, input_precision="ieee")
            out = y + row[:, None] * y_stride + column[None, :]
            mask = used[:, None] & inside[None, :]
            total = acc + tl.load(out, mask=mask, other=0.0).to(tl.float32)
            tl.store(out, total.to(y.dtype.element_ty), mask=mask)
