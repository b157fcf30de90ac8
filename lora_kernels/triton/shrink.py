"""Shrink: v = scale · x Aᵀ, many adapters in one launch.

Ranks stand on the M side of the tensor-core tile and tokens on N ("swap-AB"): a page has 16 ranks however few tokens
there are. A fixed grid strides over a device-side count of tiles, so one captured graph serves any mix of adapters.
Each v is one sum over K in one order by one program: no atomics, and the same bits whatever else is in the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Elements of K a step: 128 bytes of bfloat16, one full line per rank.
BLOCK_K = 64


@triton.jit
def shrink_kernel(
    x,
    x_stride,
    a,
    v,
    v_row,
    v_slice,
    tiles,
    counts,
    row_order,
    page_table,
    page_scales,
    live,
    k_size,
    padded_k,
    max_pages,
    SLICES: tl.constexpr,
    PAGE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One unit is a page of a tile of rows, all slices: they share the loads of x. v is float32.

    UPCAST: the interpreter's bfloat16 dot is silently wrong (Triton 3.6 and 3.9), so it runs in float32.
    """
    units = tl.load(counts + 3) * max_pages
    for unit in range(tl.program_id(0), units, tl.num_programs(0)):
        tile = tiles + unit // max_pages * 3
        place = unit % max_pages
        slot = tl.load(tile + 2)
        if place < tl.load(live + slot):
            rows = tl.load(tile + 1)
            page = tl.load(page_table + slot * max_pages + place).to(tl.int64)
            scale = tl.load(page_scales + slot * max_pages + place)
            m = tl.arange(0, TILE_ROWS)
            used = m < rows
            row = tl.load(row_order + tl.load(tile) + m, mask=used, other=0).to(tl.int64)
            rank = tl.arange(0, PAGE)
            for s in tl.static_range(SLICES):
                weights = a + ((page * SLICES + s) * PAGE + rank[:, None]) * padded_k
                acc = tl.zeros((PAGE, TILE_ROWS), tl.float32)
                for start in range(0, k_size, BLOCK_K):
                    k = start + tl.arange(0, BLOCK_K)
                    inside = k < k_size
                    w = tl.load(weights + k[None, :], mask=inside[None, :], other=0.0)
                    xt = tl.load(
                        x + row[None, :] * x_stride + k[:, None], mask=inside[:, None] & used[None, :], other=0.0
                    )
                    if UPCAST:
                        acc += tl.dot(w.to(tl.float32), xt.to(tl.float32), input_precision="ieee")
                    else:
                        acc += tl.dot(w, xt.to(w.dtype), input_precision="ieee")
                out = v + s * v_slice + row[None, :] * v_row + place * PAGE + rank[:, None]
                tl.store(out, acc * scale, mask=used[None, :])
