"""Shrink: v = scale · x Aᵀ, many adapters in one launch.

A fixed grid strides over a device-side list of (tile of rows, page of its adapter) times the parts of K, so one
captured graph serves any mix of adapters. Every v is written once by one program: no atomics, no memset, and the same
bits whatever else is in the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lora_kernels.triton.tile import page_rows, sum_chunk


@triton.jit
def shrink_kernel(
    x,
    x_stride,
    a,
    rank_scales,
    v,
    v_row,
    v_slice,
    v_plane,
    units,
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
    RANKS: tl.constexpr,
    SPLIT: tl.constexpr,
    INNER: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    FP8: tl.constexpr,
    PDL: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One unit of work is CHUNKS of the SPLIT chunks of K for one page of one tile; all slices share the loads of x.

    x [T, K] rows x_stride apart; a [pages, SLICES, PAGE, padded_k]; rank_scales
    float32 [pages, SLICES, PAGE] if FP8; v float32 [SPLIT / CHUNKS, SLICES, T, ranks], scaled where it is a single
    plane and raw sums otherwise; the rest int32 as in BatchMetadata and AdapterPool, page_scales float32.
    PDL: launched as a programmatic dependent.
    """
    PARTS: tl.constexpr = SPLIT // CHUNKS
    STEP: tl.constexpr = INNER if CHUNKS > INNER else CHUNKS
    count = tl.load(counts + 4) * PARTS
    for index in range(tl.program_id(0), count, tl.num_programs(0)):
        unit = units + index // PARTS * 4
        part = index % PARTS
        slot = tl.load(unit + 2)
        place = tl.load(unit + 3)
        page = tl.load(page_table + slot * max_pages + place).to(tl.int64)
        t = tl.arange(0, TILE_ROWS)
        used = t < tl.load(unit + 1)
        row = tl.load(row_order + tl.load(unit) + t, mask=used, other=0).to(tl.int64)
        is_live = place < tl.load(live + slot)
        if PDL:
            # x is the work of the launch before; only our own wait makes expand's wait imply that it ended.
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
        if is_live:
            rows_of_a = page_rows(a, page, padded_k, SLICES, PAGE, RANKS)
            rows_of_x = x + row * x_stride
            first = part * (CHUNKS * CHUNK)
            total = tl.zeros((RANKS, TILE_ROWS), tl.float32)
            for group in range(0, CHUNKS, STEP):
                sums = tl.zeros((RANKS, TILE_ROWS), tl.float32)
                for inner in range(0, STEP):
                    start = first + (group + inner) * CHUNK
                    end = tl.minimum(start + CHUNK, k_size)
                    sums += sum_chunk(
                        rows_of_a, rows_of_x, used, start, end, k_size, RANKS, TILE_ROWS, BLOCK_K, EVEN_K, FP8, UPCAST
                    )
                total += sums
            m = tl.arange(0, RANKS)
            stored = m < SLICES * PAGE
            if PARTS == 1:
                total *= tl.load(page_scales + slot * max_pages + place)
                if FP8:
                    factors = tl.load(rank_scales + page * (SLICES * PAGE) + m, mask=stored, other=0.0)
                    total *= factors[:, None]
            out = v + part * v_plane + (m // PAGE).to(tl.int64)[:, None] * v_slice + place * PAGE + (m % PAGE)[:, None]
            tl.store(out + row[None, :] * v_row, total, mask=stored[:, None] & used[None, :])
    if PDL:
        # A program without work must not let expand start before the launch before us ended either.
        tl.extra.cuda.gdc_wait()
