"""Pieces of paged attention that single tokens and prefill chunks share: flash attention (Dao et al., arXiv 2205.14135)
through block tables (Kwon et al., arXiv 2309.06180).

The query heads that share a KV head stand side by side on the tile's rows, so KV is read once for all of them. Softmax
runs in powers of two: exp(x) is exp2(x · log2 e), and log2 e is folded into the scale of the scores.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

# A tensor core takes no fewer rows, and no shorter sums.
MIN_ROWS = 16
# Weights times scales of 8-bit values are float16: this keeps those of values from 0.00001 to 100,000 in its range.
VALUE_SCALE = tl.constexpr(256.0)


def score_factor(head_dim: int, scale: float | None) -> float:
    """Return the scale of a query's product with a key, by default 1 / √head_dim, for softmax in powers of two."""
    return (head_dim**-0.5 if scale is None else scale) * math.log2(math.e)


def cap_factor(cap: float | None) -> float:
    """Return the cap of scores for softmax in powers of two, 0 for none."""
    return 0.0 if cap is None else cap * math.log2(math.e)


class Steps(NamedTuple):
    """How a loop over keys is cut: keys per step, and warps that share a tile of 16 query rows."""

    keys: int
    warps: int


def steps_for(head_dim: int, dtype: torch.dtype, kv_dtype: torch.dtype) -> Steps:
    """Return the steps for queries of `dtype`.

    A tile of 64 keys of 128 dimensions in 16 bits is 16 KB of shared memory; two of K and two of V let three programs
    share an SM of sm_90 (228 KB). Float32 and 256 dimensions take as much with 32 keys. 8-bit keys are widened in
    registers: 140 of them with 32 keys, 254 with 64. Float32 products run on the ordinary units, and spill with four
    warps (sm_90, Triton 3.6).
    """
    wide = dtype.itemsize * triton.next_power_of_2(head_dim) > 256
    return Steps(keys=32 if wide or kv_dtype.itemsize == 1 else 64, warps=8 if dtype == torch.float32 else 4)


@triton.jit
def soft_cap(scores, CAP: tl.constexpr):
    """Return CAP · tanh(scores / CAP) (Gemma 2, arXiv 2408.00118)."""
    return CAP - 2 * CAP / (tl.exp(scores * (2.0 / CAP)) + 1.0)


@triton.jit
def query_tile(q, q_stride, row, head, used, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, UPCAST: tl.constexpr):
    """Return queries [rows, DIM] of rows `row` and heads `head`, zero where not `used` and past HEAD_DIM.

    UPCAST: to float32, because the interpreter's bfloat16 dot is silently wrong (Triton 3.6 and 3.9).
    """
    dim = tl.arange(0, DIM)
    inside = used[:, None]
    if DIM != HEAD_DIM:
        inside = inside & (dim < HEAD_DIM)[None, :]
    places = row.to(tl.int64)[:, None] * q_stride + head[:, None] * HEAD_DIM + dim[None, :]
    tile = tl.load(q + places, mask=inside, other=0.0)
    if UPCAST:
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def kv_tile(data, places, known, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, MASKED: tl.constexpr):
    """Return [keys, DIM] from `places` on, zero past HEAD_DIM and, where MASKED, for keys that are not `known`."""
    dim = tl.arange(0, DIM)
    at = data + places[:, None] + dim[None, :]
    if DIM != HEAD_DIM:
        inside = (dim < HEAD_DIM)[None, :]
        if MASKED:
            inside = inside & known[:, None]
        tile = tl.load(at, mask=inside, other=0.0)
    elif MASKED:
        tile = tl.load(at, mask=known[:, None], other=0.0)
    else:
        tile = tl.load(at)
    return tile


@triton.jit
def half_queries(queries):
    """Return queries [rows, DIM] in float16, each row divided by a power of two, and those powers, float32 [rows].

    8-bit keys become float16 in one instruction for two; bfloat16 takes a slow conversion for each. Powers of two are
    exact; numbers below 2^-14 of their row's largest lose bits, which no sum shows.
    """
    queries = queries.to(tl.float32)
    bits = tl.max(tl.abs(queries), 1).to(tl.int32, bitcast=True) & 0x7F800000
    bits = tl.where(bits == 0, 0x3F800000, bits)
    inverse = (0x7F000000 - bits).to(tl.float32, bitcast=True)
    return (queries * inverse[:, None]).to(tl.float16), bits.to(tl.float32, bitcast=True)


@triton.jit
def block_ids(table, token, stop, BLOCK_SIZE: tl.constexpr):
    """Return the blocks of positions `token`, 0 from `stop` on.

    Loops load them one step ahead and carry them: a K or V load that waits for a load of its own step gets a single
    buffer from the compiler's pipeliner instead of two (Triton 3.6 and 3.9).
    """
    return tl.load(table + token.to(tl.uint32) // BLOCK_SIZE, mask=token < stop, other=0)


@triton.jit
def slots(block, token, BLOCK_SIZE: tl.constexpr):
    """Return the slots of positions `token` from their blocks.

    Unsigned, as in `block_ids`: signed division and 64-bit products made a fifth of the decode loop's instructions.
    """
    return block * BLOCK_SIZE + token.to(tl.uint32) % BLOCK_SIZE


@triton.jit
def head_scales(scales, slot, known, kv_head, KV_HEADS: tl.constexpr, MASKED: tl.constexpr):
    """Return the scales [keys] of one head of 8-bit keys or values."""
    at = scales + slot.to(tl.int64) * KV_HEADS + kv_head
    return tl.load(at, mask=known, other=0.0) if MASKED else tl.load(at)
