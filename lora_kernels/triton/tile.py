"""What every kernel does with a tile: the dot, a chunk of the sum over K, and the sum of a chunk's planes.

The sum over K has one fixed shape, whatever the batch: K is cut into SPLIT chunks, each summed in order by one chain of
tensor-core instructions; INNER chunks make a group, groups make the total, always added left to right from zero.
Shrink may leave the chunks, the groups or the total for expand to add (CHUNKS per program 1, INNER or SPLIT): more
programs for few rows, fewer float32 planes for many. All three give the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

# What becomes of x before A multiplies it: nothing, RMS norm (fused_norm.py), or silu(gate) · up (fused_silu.py).
PLAIN = tl.constexpr(0)
NORM = tl.constexpr(1)
SILU = tl.constexpr(2)


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
def normed(t, factor, weight):
    """RMS norm as Llama rounds it: t · factor to t's dtype, then times weight."""
    return ((t.to(tl.float32) * factor).to(t.dtype).to(tl.float32) * weight.to(tl.float32)).to(t.dtype)


@triton.jit
def silu_mul(gate, up):
    """silu(gate) · up as Llama rounds it: silu to gate's dtype, then the product."""
    wide = gate.to(tl.float32)
    return ((wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32) * up.to(tl.float32)).to(gate.dtype)


@triton.jit
def load_tokens(rows_of_x, other, factor, k, inside, used, EVEN_K: tl.constexpr, PROLOGUE: tl.constexpr):
    """A tile of what A multiplies, [BLOCK_K, TILE_ROWS], in x's dtype; 0 outside.

    NORM: `other` is the norm's weight and factor [TILE_ROWS] is 1 / rms of each row. SILU: rows_of_x is the gate and
    `other` the distance in elements from gate to up in a row.
    """
    mask = used[None, :] if EVEN_K else inside[:, None] & used[None, :]
    pointers = rows_of_x[None, :] + k[:, None]
    t = tl.load(pointers, mask=mask, other=0.0)
    if PROLOGUE == NORM:
        weight = tl.load(other + k) if EVEN_K else tl.load(other + k, mask=inside, other=0.0)
        t = normed(t, factor[None, :], weight[:, None])
    if PROLOGUE == SILU:
        t = silu_mul(t, tl.load(pointers + other, mask=mask, other=0.0))
    return t


@triton.jit
def sum_chunk(
    rows_of_a,
    rows_of_x,
    other,
    factor,
    used,
    first_k,
    last_k,
    k_size,
    RANKS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    PROLOGUE: tl.constexpr,
    FP8: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """A[:, first_k:last_k] · t[:, first_k:last_k]ᵀ, float32 [RANKS, TILE_ROWS], t as load_tokens gives it.

    Ranks stand on the M side of the tensor-core tile and tokens on N ("swap-AB"): a page has 16 ranks however few
    tokens there are. EVEN_K: K is a multiple of BLOCK_K, so no load needs a mask along it.
    """
    acc = tl.zeros((RANKS, TILE_ROWS), tl.float32)
    for start in range(first_k, last_k, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        inside = k < k_size
        if EVEN_K:
            w = tl.load(rows_of_a[:, None] + k[None, :])
        else:
            w = tl.load(rows_of_a[:, None] + k[None, :], mask=inside[None, :], other=0.0)
        t = load_tokens(rows_of_x, other, factor, k, inside, used, EVEN_K, PROLOGUE)
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
