"""What every kernel does with a tile: the dot, a chunk of the sum over K, and the sum of a chunk's planes.

The sum over K has one fixed shape, whatever the batch: K is cut into SPLIT chunks, each summed in order by one chain of
tensor-core instructions; INNER chunks make a group, groups make the total, always added left to right from zero.
Shrink may leave the chunks, the groups or the total for expand to add (CHUNKS per program 1, INNER or SPLIT): more
programs for few rows, fewer float32 planes for many. All three give the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def dot(left, right, acc, UPCAST: tl.constexpr):
    """acc + left · right in float32.

    UPCAST: the interpreter's bfloat16 dot is silently wrong (Triton 3.6 and 3.9), so it runs in float32. "ieee" because
    float32 weights would be rounded to TF32 otherwise; it does nothing to 16-bit operands.
    """
    if UPCAST:
        return tl.dot(left.to(tl.float32), right.to(tl.float32), acc, input_precision="ieee")
    return tl.dot(left, right, acc, input_precision="ieee")


@triton.jit
def page_rows(a, page, padded_k, SLICES: tl.constexpr, PAGE: tl.constexpr, RANKS: tl.constexpr):
    """Pointers to the rows of A of one page, all slices, [RANKS]; RANKS is SLICES · PAGE rounded up to a power of 2."""
    m = tl.arange(0, RANKS)
    # Rows past the last slice repeat its first row: no mask, no traffic of their own, and their sums are not stored.
    m = tl.where(m < SLICES * PAGE, m, 0)
    return a + (page * (SLICES * PAGE) + m).to(tl.int64) * padded_k


@triton.jit
def sum_chunk(
    rows_of_a,
    rows_of_x,
    used,
    first_k,
    last_k,
    k_size,
    RANKS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    FP8: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """A[:, first_k:last_k] · t[:, first_k:last_k]ᵀ, float32 [RANKS, TILE_ROWS], t the rows of x.

    Ranks stand on the M side of the tensor-core tile and tokens on N ("swap-AB"): a page has 16 ranks however few
    tokens there are. EVEN_K: K is a multiple of BLOCK_K, so no load needs a mask along it.
    """
    acc = tl.zeros((RANKS, TILE_ROWS), tl.float32)
    for start in range(first_k, last_k, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        inside = k < k_size
        if EVEN_K:
            w = tl.load(rows_of_a[:, None] + k[None, :])
            t = tl.load(rows_of_x[None, :] + k[:, None], mask=used[None, :], other=0.0)
        else:
            w = tl.load(rows_of_a[:, None] + k[None, :], mask=inside[None, :], other=0.0)
            t = tl.load(rows_of_x[None, :] + k[:, None], mask=inside[:, None] & used[None, :], other=0.0)
        if FP8:
            w = w.to(t.dtype)  # exact: every e4m3 number is one of the wider type
        else:
            t = t.to(w.dtype)
        acc = dot(w, t, acc, UPCAST)
    return acc


@triton.jit
def sum_planes(
    part, v_plane, mask, PLANES: tl.constexpr, INNER: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr
):
    """The planes of v at `part` [HEIGHT, WIDTH], INNER to a group, in the order in which shrink would have added."""
    total = tl.zeros((HEIGHT, WIDTH), tl.float32)
    for outer in tl.static_range(0, PLANES, INNER):
        group = tl.zeros((HEIGHT, WIDTH), tl.float32)
        for inner in tl.static_range(0, INNER):
            group += tl.load(part + (outer + inner) * v_plane, mask=mask, other=0.0)
        total += group
    return total
