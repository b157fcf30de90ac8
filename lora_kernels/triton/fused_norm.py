"""RMS norm and shrink in one launch, for decode: what it saves is a launch, what it costs is the norm of a row anew in
every unit that multiplies it (K elements from the second-level cache, beside the page's chunk from memory).

Unmeasured, therefore off: `fused_norm` in a configuration file turns it on for a site.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lora_kernels.triton.shrink import inverse_rms, shrink_units
from lora_kernels.triton.tile import NORM, normed


@triton.jit
def norm_shrink_kernel(
    x,
    x_stride,
    weight,
    eps,
    out,
    out_stride,
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
    """out [T, K] = rmsnorm(x) · weight, of every row, and v = scale · out Aᵀ. Other arguments as in shrink_units."""
    if PDL:
        tl.extra.cuda.gdc_wait()
    for row in range(tl.program_id(0), tl.load(counts), tl.num_programs(0)):
        # A tile of one row: the sum of squares is added as in the units below.
        rows_of_x = x + tl.full((1,), row, tl.int64) * x_stride
        factor = inverse_rms(rows_of_x, tl.full((1,), True, tl.int1), k_size, eps, 1, BLOCK_K)
        for start in range(0, k_size, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            inside = (k < k_size)[:, None]
            t = tl.load(rows_of_x[None, :] + k[:, None], mask=inside, other=0.0)
            w = tl.load(weight + k, mask=k < k_size, other=0.0)
            rows_of_out = out + tl.full((1,), row, tl.int64) * out_stride
            tl.store(rows_of_out[None, :] + k[:, None], normed(t, factor[None, :], w[:, None]), mask=inside)
    shrink_units(
        x, x_stride, weight, eps, a, rank_scales, v, v_row, v_slice, v_plane,
        units, counts, row_order, page_table, page_scales, live, k_size, padded_k, max_pages,
        SLICES, PAGE, RANKS, SPLIT, INNER, CHUNK, CHUNKS, TILE_ROWS, BLOCK_K, EVEN_K, NORM, False, FP8, PDL, UPCAST,
    )  # fmt: skip
