"""Paged attention of single tokens: one query position per row, its keys split over programs (flash-decoding).

A fixed grid strides over the device's list of splits times KV heads. An item of n keys reads 2 · n · head_dim numbers
of K and V, which bounds its time, and writes group · (head_dim + 2) float32 numbers: 3 % of the bytes read with 128
keys in 16 bits and four heads per KV head, 0.1 % with 4,096.
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
from serving.kernels.triton.attention_combine import combine
from serving.kernels.triton.attention_work import ITEM, AttentionWork
from serving.kernels.triton.kv_layer import KVLayer


@triton.jit
def _attend_split(
    queries,
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
    ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    SCALED: tl.constexpr,
    CAP: tl.constexpr,
):
    """Return weighted values [ROWS, DIM], and each row's maximum (times `factor`) and sum of weights, [ROWS].

    factor: float32 [ROWS], the scale of each row's scores, for softmax in powers of two

    The sum is kept apart for each key of a step and added once at the end: it spares a reduction between warps.
    """
    key = tl.arange(0, BLOCK_KV)
    highest = tl.full((ROWS,), float("-inf"), tl.float32)
    sums = tl.zeros((ROWS, BLOCK_KV), tl.float32)
    acc = tl.zeros((ROWS, DIM), tl.float32)
    spread = factor
    if CAP > 0:  # capped scores have their scale already
        spread = tl.full((ROWS,), 1.0, tl.float32)
    block = block_ids(table, begin + key, stop, BLOCK_SIZE)
    for position in range(begin, stop, BLOCK_KV):
        token = position + key
        known = token < stop
        slot = slots(block, token, BLOCK_SIZE)
        block = block_ids(table, token + BLOCK_KV, stop, BLOCK_SIZE)
        places = slot.to(tl.int64) * token_stride + kv_head * HEAD_DIM
        k = kv_tile(keys, places, known, HEAD_DIM, DIM, True).to(queries.dtype)
        v = kv_tile(values, places, known, HEAD_DIM, DIM, True).to(queries.dtype)
        scores = tl.dot(queries, tl.trans(k), input_precision="ieee")
        if SCALED:
            scores *= head_scales(key_scales, slot, known, kv_head, KV_HEADS, True)[None, :]
        if CAP > 0:
            scores = soft_cap(scores * factor[:, None], CAP)
        # Each step has a known key, so a maximum is never -inf, nor a weight NaN.
        scores = tl.where(known[None, :], scores, float("-inf"))
        highest_now = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores * spread[:, None] - (highest_now * spread)[:, None])
        shrink = tl.exp2((highest - highest_now) * spread)
        sums = sums * shrink[:, None] + weights
        if SCALED:
            weights *= VALUE_SCALE * head_scales(value_scales, slot, known, kv_head, KV_HEADS, True)[None, :]
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        highest = highest_now
    if SCALED:
        acc *= 1.0 / VALUE_SCALE
    return acc, highest * spread, tl.sum(sums, 1)


@triton.jit(do_not_specialize=["table_stride"])
def attend_splits(
    q,
    q_stride,
    keys,
    values,
    key_scales,
    value_scales,
    token_stride,
    tables,
    table_stride,
    positions,
    items,
    parts,
    stats,
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
    ITEM: tl.constexpr,
    UPCAST: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
):
    """Attend for one item of `AttentionWork` and one KV head after another.

    A split that lies before its row's window has no keys: its maximum is -inf, and its part counts for nothing.
    """
    lane = tl.arange(0, ROWS)
    dim = tl.arange(0, DIM)
    used = lane < GROUP
    inside = used[:, None]
    if DIM != HEAD_DIM:
        inside = inside & (dim < HEAD_DIM)[None, :]
    for at in range(tl.program_id(0), tl.load(items) * KV_HEADS, tl.num_programs(0)):
        item = items + (1 + at // KV_HEADS) * ITEM
        kv_head = at % KV_HEADS
        head = kv_head * GROUP + lane
        row = tl.load(item)
        place = tl.load(item + 3)
        begin = tl.load(item + 1)
        if WINDOW > 0:
            begin = tl.maximum(begin, tl.load(positions + row) - (WINDOW - 1))
        queries = query_tile(q, q_stride, row + lane * 0, head, used, HEAD_DIM, DIM, UPCAST)
        factors = tl.full((ROWS,), 1.0, tl.float32) * factor
        if HALF:
            queries, powers = half_queries(queries)
            factors *= powers
        acc, highest, total = _attend_split(
            queries,
            keys,
            values,
            key_scales,
            value_scales,
            token_stride,
            tables + tl.load(item + 4).to(tl.int64) * table_stride,
            begin,
            tl.load(item + 2),
            kv_head,
            factors,
            KV_HEADS,
            HEAD_DIM,
            DIM,
            ROWS,
            BLOCK_SIZE,
            BLOCK_KV,
            SCALED,
            CAP,
        )
        if place < 0:
            result = (acc / total[:, None]).to(out.dtype.element_ty)
            target = row.to(tl.int64) * out_stride + head * HEAD_DIM
            tl.store(out + target[:, None] + dim[None, :], result, mask=inside)
        else:
            target = place.to(tl.int64) * (KV_HEADS * GROUP) + head
            tl.store(parts + target[:, None] * HEAD_DIM + dim[None, :], acc, mask=inside)
            tl.store(stats + target * 2, highest, mask=used)
            tl.store(stats + target * 2 + 1, total, mask=used)


def attend_tokens(
    q: torch.Tensor,
    kv: KVLayer,
    positions: torch.Tensor,
    tables: torch.Tensor,
    counts: torch.Tensor,
    out: torch.Tensor,
    heads: int,
    block_size: int,
    work: AttentionWork,
    *,
    scale: float | None = None,
    cap: float | None = None,
    window: int | None = None,
    upcast: bool = False,
) -> None:
    """Attend for the first counts[0] rows, single tokens of sequences, whose splits `work.fill` listed.

    q: [rows, ≥ heads · head_dim], rows may be strided
    positions: int32 [rows], as `fill` was given; tables: int32 [sequences, blocks]; counts: int32, read on the device
    out: [rows, heads · head_dim]; other rows are not written
    scale, cap, window: as `serving.kv.scores.Scores` has them; scale None: 1 / √head_dim
    """
    kv_heads, head_dim = kv.keys.shape[1:]
    group, steps = heads // kv_heads, steps_for(head_dim, q.dtype, kv.keys.dtype)
    attend_splits[(work.programs,)](
        q,
        q.stride(0),
        kv.keys,
        kv.values,
        kv.key_scales,
        kv.value_scales,
        kv.keys.stride(0),
        tables,
        tables.stride(0),
        positions,
        work.items,
        work.parts,
        work.stats,
        out,
        out.stride(0),
        score_factor(head_dim, scale),
        KV_HEADS=kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        DIM=max(MIN_ROWS, triton.next_power_of_2(head_dim)),
        ROWS=max(MIN_ROWS, triton.next_power_of_2(group)),
        BLOCK_SIZE=block_size,
        BLOCK_KV=steps.keys,
        SCALED=kv.key_scales is not None,
        HALF=kv.key_scales is not None and q.dtype != torch.float32,
        ITEM=ITEM,
        UPCAST=upcast,
        WINDOW=window or 0,
        CAP=cap_factor(cap),
        num_warps=steps.warps,
        num_stages=3,
        # Three programs a processor either way, and ptxas (Triton 3.9) would spill registers on the way to a fourth.
        # The cap of scores takes more of them.
        maxnreg=168 if kv.key_scales is not None and head_dim >= 128 and cap is None else None,
    )
    combine(work, positions, counts, out, heads, head_dim)
