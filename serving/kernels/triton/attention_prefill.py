"""Paged attention of prefill chunks: causal, in tiles of query positions.

A tile's keys before its first position are seen by all its rows and take a loop without masks; masks are for the keys
from there on, the tile's own ("diagonal") ones. A tile of n positions after `start` others computes
4 · n · (start + n / 2) · head_dim operations per head and reads 2 · (start + n) · head_dim numbers per KV head.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from serving.kernels.triton.attention import (
    MIN_ROWS,
    VALUE_SCALE,
    block_ids,
    cap_factor,
    half_queries,
    head_scales,
    kv_tile,
    query_tile,
    score_factor,
    slots,
    soft_cap,
    steps_for,
)
from serving.kernels.triton.kv_layer import KVLayer

# Rows of the tensor-core tile: query positions times heads that share a KV head.
TILE_ROWS = 128
# Float32 has no tensor core that is exact: its products take registers instead (64 rows spill 17,288 bytes per thread).
FLOAT32_ROWS = 16


@triton.jit
def _attend_keys(
    queries,
    last,
    acc,
    highest,
    total,
    keys,
    values,
    key_scales,
    value_scales,
    token_stride,
    table,
    begin,
    stop,
    kv_head,
    factor,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    MASKED: tl.constexpr,
    SCALED: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
):
    """Add the keys from `begin` to `stop` to weighted values, maxima and sums. Without masks, whole steps only.

    last: the last position that each row sees; factor: float32 [rows], the scale of its scores in powers of two
    """
    key = tl.arange(0, BLOCK_KV)
    spread = factor
    if CAP > 0:  # capped scores have their scale already
        spread = tl.full(factor.shape, 1.0, tl.float32)
    block = block_ids(table, begin + key, stop, BLOCK_SIZE)
    for position in range(begin, stop, BLOCK_KV):
        token = position + key
        known = token < stop
        slot = slots(block, token, BLOCK_SIZE)
        block = block_ids(table, token + BLOCK_KV, stop, BLOCK_SIZE)
        places = slot.to(tl.int64) * token_stride + kv_head * HEAD_DIM
        k = kv_tile(keys, places, known, HEAD_DIM, DIM, MASKED).to(queries.dtype)
        v = kv_tile(values, places, known, HEAD_DIM, DIM, MASKED).to(queries.dtype)
        scores = tl.dot(queries, tl.trans(k), input_precision="ieee")
        if SCALED:
            scores *= head_scales(key_scales, slot, known, kv_head, KV_HEADS, MASKED)[None, :]
        if CAP > 0:
            scores = soft_cap(scores * factor[:, None], CAP)
        if MASKED:
            scores = tl.where(token[None, :] <= last[:, None], scores, float("-inf"))
        if WINDOW > 0:
            scores = tl.where(token[None, :] > last[:, None] - WINDOW, scores, float("-inf"))
        # Every row sees the first key of every chunk of keys before its own, and of its own: a maximum is never -inf.
        highest_now = tl.maximum(highest, tl.max(scores, 1))
        most = highest_now
        if WINDOW > 0:  # but where these keys lie before its window
            most = tl.where(highest_now == float("-inf"), 0.0, highest_now)
        weights = tl.exp2(scores * spread[:, None] - (most * spread)[:, None])
        shrink = tl.exp2((highest - most) * spread)
        total = total * shrink + tl.sum(weights, 1)
        if SCALED:
            weights *= VALUE_SCALE * head_scales(value_scales, slot, known, kv_head, KV_HEADS, MASKED)[None, :]
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        highest = highest_now
    return acc, highest, total


@triton.jit(do_not_specialize=["table_stride"])
def attend_tiles(
    q,
    q_stride,
    keys,
    values,
    key_scales,
    value_scales,
    token_stride,
    units,
    tables,
    table_stride,
    counts,
    out,
    out_stride,
    factor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    SCALED: tl.constexpr,
    HALF: tl.constexpr,
    UPCAST: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
):
    """Attend for one unit and KV head: int32 [4], first row, query positions, position of the first, its table.

    The last units of a chunk have most keys; they start first.
    """
    kv_head = tl.program_id(0)
    number = tl.load(counts + 1) - 1 - tl.program_id(1)
    if number >= 0:
        unit = units + number * 4
        count = tl.load(unit + 1)
        start = tl.load(unit + 2)
        table = tables + tl.load(unit + 3).to(tl.int64) * table_stride
        m = tl.arange(0, ROWS)
        query = m // GROUP
        head = kv_head * GROUP + m % GROUP
        used = query < count
        row = tl.load(unit) + query
        queries = query_tile(q, q_stride, row, head, used, HEAD_DIM, DIM, UPCAST)
        factors = tl.full((ROWS,), 1.0, tl.float32) * factor
        if HALF:
            queries, powers = half_queries(queries)
            factors *= powers
        acc = tl.zeros((ROWS, DIM), tl.float32)
        highest = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        # Rows past the unit see what its last one sees.
        last = start + tl.minimum(query, count - 1)
        middle = start // BLOCK_KV * BLOCK_KV
        if WINDOW > 0:
            # Steps begin at the same keys whatever unit a query came in: all are masked.
            middle = tl.maximum(start - (WINDOW - 1), 0) // BLOCK_KV * BLOCK_KV
        else:
            acc, highest, total = _attend_keys(
                queries,
                last,
                acc,
                highest,
                total,
                keys,
                values,
                key_scales,
                value_scales,
                token_stride,
                table,
                0,
                middle,
                kv_head,
                factors,
                KV_HEADS,
                HEAD_DIM,
                DIM,
                BLOCK_SIZE,
                BLOCK_KV,
                False,
                SCALED,
                WINDOW,
                CAP,
            )
        acc, highest, total = _attend_keys(
            queries,
            last,
            acc,
            highest,
            total,
            keys,
            values,
            key_scales,
            value_scales,
            token_stride,
            table,
            middle,
            start + count,
            kv_head,
            factors,
            KV_HEADS,
            HEAD_DIM,
            DIM,
            BLOCK_SIZE,
            BLOCK_KV,
            True,
            SCALED,
            WINDOW,
            CAP,
        )
        inside = used[:, None]
        dim = tl.arange(0, DIM)
        if DIM != HEAD_DIM:
            inside = inside & (dim < HEAD_DIM)[None, :]
        target = row.to(tl.int64) * out_stride + head * HEAD_DIM
        if SCALED:
            total *= VALUE_SCALE
        result = (acc / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + target[:, None] + dim[None, :], result, mask=inside)


def attend_chunks(
    q: torch.Tensor,
    kv: KVLayer,
    units: torch.Tensor,
    tables: torch.Tensor,
    counts: torch.Tensor,
    out: torch.Tensor,
    heads: int,
    block_size: int,
    *,
    scale: float | None = None,
    cap: float | None = None,
    window: int | None = None,
    upcast: bool = False,
) -> None:
    """Compute causal attention of prefill chunks, each unit one tile of query positions.

    q: [rows, ≥ heads · head_dim], rows may be strided
    units: int32 [n, 4], as `attend_tiles` reads them, at most `queries_a_tile` positions each; counts[1] of them count
    tables: int32 [sequences, blocks]; counts: int32, read on the device
    out: [rows, heads · head_dim]; rows outside all units are not written
    scale, cap, window: as `serving.kv.scores.Scores` has them; scale None: 1 / √head_dim
    """
    kv_heads, head_dim = kv.keys.shape[1:]
    group, steps = heads // kv_heads, steps_for(head_dim, q.dtype, kv.keys.dtype)
    rows = _tile_rows(group, q.dtype)
    keys = steps.keys
    if cap is not None and kv.key_scales is not None and head_dim > 128:
        keys //= 2  # or 35 instructions spill registers (sm_90, Triton 3.6)
    attend_tiles[(kv_heads, units.shape[0])](
        q,
        q.stride(0),
        kv.keys,
        kv.values,
        kv.key_scales,
        kv.value_scales,
        kv.keys.stride(0),
        units,
        tables,
        tables.stride(0),
        counts,
        out,
        out.stride(0),
        score_factor(head_dim, scale),
        KV_HEADS=kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        DIM=max(MIN_ROWS, triton.next_power_of_2(head_dim)),
        ROWS=rows,
        BLOCK_SIZE=block_size,
        BLOCK_KV=keys,
        SCALED=kv.key_scales is not None,
        HALF=kv.key_scales is not None and q.dtype != torch.float32,
        UPCAST=upcast,
        WINDOW=window or 0,
        CAP=cap_factor(cap),
        num_warps=8 if rows > 64 else steps.warps,
        num_stages=3,
    )


def queries_a_tile(group: int, dtype: torch.dtype) -> int:
    """Return the query positions of one prefill unit when `group` heads share a KV head."""
    return max(1, (FLOAT32_ROWS if dtype == torch.float32 else TILE_ROWS) // group)


def _tile_rows(group: int, dtype: torch.dtype) -> int:
    """Return the rows of the tile: a power of two, and at least the 16 that a tensor core takes."""
    return max(MIN_ROWS, triton.next_power_of_2(group * queries_a_tile(group, dtype)))
