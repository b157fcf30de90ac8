"""One-token tiles without the tensor cores: a matrix times a vector, in plain float32 multiply-adds.

A lone row fills one column in eight of a tensor-core tile. The sums are added in another order, so a row alone would
differ in its last bits from the same row in company: used only where the configuration says `gemv`, off by default.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def shrink_row(
    rows_of_a, x_row, first_k, last_k, k_size, RANKS: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr
):
    """A[:, first_k:last_k] · x[first_k:last_k], float32 [RANKS]; rows_of_a [RANKS] and x_row are pointers."""
    acc = tl.zeros((RANKS, BLOCK_K), tl.float32)
    for start in range(first_k, last_k, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        if EVEN_K:
            w = tl.load(rows_of_a[:, None] + k[None, :])
            t = tl.load(x_row + k)
        else:
            w = tl.load(rows_of_a[:, None] + k[None, :], mask=(k < k_size)[None, :], other=0.0)
            t = tl.load(x_row + k, mask=k < k_size, other=0.0)
        acc += w.to(tl.float32) * t.to(tl.float32)[None, :]
    return tl.sum(acc, axis=1)


@triton.jit
def expand_row(w, part):
    """partᵀ · w, float32 [columns], of one page: w [ranks, columns], part float32 [ranks] in w's precision."""
    return tl.sum(w.to(tl.float32) * part[:, None], axis=0)
