"""silu(gate) · up and shrink in one launch, for decode: each unit activates the chunk of K that it multiplies.

Unmeasured, therefore off: `fused_silu` in a configuration file turns it on for a site.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lora_kernels.triton.shrink import shrink_units
from lora_kernels.triton.tile import SILU, silu_mul


@triton.jit
def silu_shrink_kernel(
    gate_up,
    gate_up_stride,
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
    """out [T, K] = silu(gate) · up, of every row, and v = scale · out Aᵀ; gate_up [T, 2K]; see shrink_units."""
    if PDL:
        tl.extra.cuda.gdc_wait()
    blocks = (k_size + BLOCK_K - 1) // BLOCK_K
    for index in range(tl.program_id(0), tl.load(counts) * blocks, tl.num_programs(0)):
        row = (index // blocks).to(tl.int64)
        k = index % blocks * BLOCK_K + tl.arange(0, BLOCK_K)
        gate = gate_up + row * gate_up_stride + k
        product = silu_mul(
            tl.load(gate, mask=k < k_size, other=0.0), tl.load(gate + k_size, mask=k < k_size, other=0.0)
        )
        tl.store(out + row * out_stride + k, product, mask=k < k_size)
    shrink_units(
        gate_up, gate_up_stride, k_size, 0.0, a, rank_scales, v, v_row, v_slice, v_plane,
        units, counts, row_order, page_table, page_scales, live, k_size, padded_k, max_pages,
        SLICES, PAGE, RANKS, SPLIT, INNER, CHUNK, CHUNKS, TILE_ROWS, BLOCK_K, EVEN_K, SILU, False, FP8, PDL, UPCAST,
    )  # fmt: skip
