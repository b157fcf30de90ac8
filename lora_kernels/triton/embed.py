"""Adapters on the embedding: v = scale · A[:, token], a column of A looked up instead of multiplied."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def embed_kernel(
    tokens,
    a,
    rank_scales,
    v,
    v_row,
    units,
    counts,
    row_order,
    page_table,
    page_scales,
    live,
    padded_k,
    max_pages,
    PAGE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    FP8: tl.constexpr,
    PDL: tl.constexpr,
):
    """One unit is a page of a tile of rows. tokens [T] int32 or int64; a [pages, 1, PAGE, padded_k]; v float32 [T, R].

    A vocabulary of 128k times thousands of pages passes 2³¹ elements: offsets are int64.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for index in range(tl.program_id(0), tl.load(counts + 4), tl.num_programs(0)):
        unit = units + index * 4
        slot = tl.load(unit + 2)
        place = tl.load(unit + 3)
        if place < tl.load(live + slot):
            page = tl.load(page_table + slot * max_pages + place).to(tl.int64)
            t = tl.arange(0, TILE_ROWS)
            used = t < tl.load(unit + 1)
            row = tl.load(row_order + tl.load(unit) + t, mask=used, other=0).to(tl.int64)
            token = tl.load(tokens + row, mask=used, other=0).to(tl.int64)
            rank = tl.arange(0, PAGE)
            columns = a + (page * PAGE + rank)[None, :] * padded_k + token[:, None]
            part = tl.load(columns, mask=used[:, None], other=0.0).to(tl.float32)
            part *= tl.load(page_scales + slot * max_pages + place)
            if FP8:
                part *= tl.load(rank_scales + page * PAGE + rank)[None, :]
            tl.store(v + row[:, None] * v_row + place * PAGE + rank[None, :], part, mask=used[:, None])
