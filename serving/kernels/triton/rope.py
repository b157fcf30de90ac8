"""From the product of queries, keys and values to attention's inputs, one read and one write per number: bias, norm
of each head (Zhang & Sennrich, arXiv 1910.07467), rotary embedding (Su et al., arXiv 2104.09864), write into the cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from serving.kernels.triton.e4m3 import E4M3_MAX, nearest
from serving.kernels.triton.kv_layer import KVLayer

# Numbers of half a head times heads per program: 64 threads load 16 bytes of each half.
TILE = 512


@triton.jit
def _store_heads(
    data,
    scales,
    first,
    second,
    rest,
    slot,
    token_stride,
    head,
    mine,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    ROTATED: tl.constexpr,
    REST: tl.constexpr,
    SCALED: tl.constexpr,
    E4M3_MAX: tl.constexpr,
):
    """Write float32 halves [heads, HALF] and the rest [heads, REST] of the heads that are `mine` to their slot, in 8
    bits with their scales."""
    half: tl.constexpr = ROTATED // 2
    lane = tl.arange(0, HALF)
    inside = mine[:, None] & (lane < half)[None, :]
    if SCALED:
        highest = tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))
        if REST > 0:
            highest = tl.maximum(highest, tl.max(tl.abs(rest), 1))
        # A head of zeros, or of numbers whose inverse overflows, is stored as zeros.
        factor = tl.where(highest > 1e-30, E4M3_MAX / tl.maximum(highest, 1e-30), 0.0)
        first = nearest(first * factor[:, None])
        second = nearest(second * factor[:, None])
        if REST > 0:
            rest = nearest(rest * factor[:, None])
        tl.store(scales + slot * KV_HEADS + head, highest / E4M3_MAX, mask=mine)
    target = data + slot * token_stride + head[:, None] * HEAD_DIM + lane[None, :]
    tl.store(target, first.to(data.dtype.element_ty), mask=inside)
    tl.store(target + half, second.to(data.dtype.element_ty), mask=inside)
    if REST > 0:
        left = ROTATED + tl.arange(0, REST)
        target = data + slot * token_stride + head[:, None] * HEAD_DIM + left[None, :]
        tl.store(target, rest.to(data.dtype.element_ty), mask=mine[:, None] & (left < HEAD_DIM)[None, :])


@triton.jit
def _norm_heads(
    first,
    second,
    q_norm,
    k_norm,
    eps,
    head,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
):
    """Return float32 halves [heads, HALF] with queries and keys normed and weighted, values as they are."""
    half: tl.constexpr = HEAD_DIM // 2
    lane = tl.arange(0, HALF)
    there = lane < half
    is_query = (head < HEADS)[:, None]
    q1 = tl.load(q_norm + lane, mask=there, other=0.0).to(tl.float32)[None, :]
    q2 = tl.load(q_norm + half + lane, mask=there, other=0.0).to(tl.float32)[None, :]
    k1 = tl.load(k_norm + lane, mask=there, other=0.0).to(tl.float32)[None, :]
    k2 = tl.load(k_norm + half + lane, mask=there, other=0.0).to(tl.float32)[None, :]
    squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
    inverse = (1.0 / tl.sqrt(squares / HEAD_DIM + eps))[:, None]
    is_value = (head >= HEADS + KV_HEADS)[:, None]
    one = tl.where(is_value, first, first * inverse * tl.where(is_query, q1, k1))
    two = tl.where(is_value, second, second * inverse * tl.where(is_query, q2, k2))
    return one, two


@triton.jit
def rotate_heads(
    qkv,
    qkv_stride,
    bias,
    q_norm,
    k_norm,
    eps,
    positions,
    slots,
    table,
    keys,
    values,
    key_scales,
    value_scales,
    token_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    ROTATED: tl.constexpr,
    REST: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    ROTATE: tl.constexpr,
    BIAS: tl.constexpr,
    NORM: tl.constexpr,
    SCALED: tl.constexpr,
    E4M3_MAX: tl.constexpr,
):
    """Process TILE_HEADS heads of one row: queries in place, keys and values into the cache.

    ROTATED: dimensions that are rotated, from the first one on; without a table (ROTATE) all are taken as if they were
    HALF: half of them, rounded up to a power of two; REST: the others, likewise, 0 for none
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * TILE_HEADS + tl.arange(0, TILE_HEADS)
    half: tl.constexpr = ROTATED // 2
    lane = tl.arange(0, HALF)
    inside = (head < HEADS + 2 * KV_HEADS)[:, None] & (lane < half)[None, :]
    source = qkv + row * qkv_stride + head[:, None] * HEAD_DIM + lane[None, :]
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
    rest = first
    if REST > 0:
        left = ROTATED + tl.arange(0, REST)
        there = (head < HEADS + 2 * KV_HEADS)[:, None] & (left < HEAD_DIM)[None, :]
        rest = tl.load(qkv + row * qkv_stride + head[:, None] * HEAD_DIM + left[None, :], mask=there, other=0.0)
        rest = rest.to(tl.float32)
    if BIAS:
        added = bias + head[:, None] * HEAD_DIM + lane[None, :]
        first += tl.load(added, mask=inside, other=0.0).to(tl.float32)
        second += tl.load(added + half, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        first, second = _norm_heads(first, second, q_norm, k_norm, eps, head, HEADS, KV_HEADS, HEAD_DIM, HALF)
    one = first
    two = second
    if ROTATE:
        angle = table + tl.load(positions + row).to(tl.int64) * ROTATED + lane
        cos = tl.load(angle, mask=lane < half, other=0.0)[None, :]
        sin = tl.load(angle + half, mask=lane < half, other=0.0)[None, :]
        one = first * cos - second * sin
        two = second * cos + first * sin
    query = inside & (head < HEADS)[:, None]
    tl.store(source, one.to(qkv.dtype.element_ty), mask=query)
    tl.store(source + half, two.to(qkv.dtype.element_ty), mask=query)
    slot = tl.load(slots + row).to(tl.int64)
    of_kv = head - HEADS
    is_key = (of_kv >= 0) & (of_kv < KV_HEADS)
    _store_heads(
        keys,
        key_scales,
        one,
        two,
        rest,
        slot,
        token_stride,
        of_kv,
        is_key,
        KV_HEADS,
        HEAD_DIM,
        HALF,
        ROTATED,
        REST,
        SCALED,
        E4M3_MAX,
    )
    of_kv -= KV_HEADS
    is_value = (of_kv >= 0) & (of_kv < KV_HEADS)
    _store_heads(
        values,
        value_scales,
        first,
        second,
        rest,
        slot,
        token_stride,
        of_kv,
        is_value,
        KV_HEADS,
        HEAD_DIM,
        HALF,
        ROTATED,
        REST,
        SCALED,
        E4M3_MAX,
    )


def rope_and_store(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    table: torch.Tensor | None,
    kv: KVLayer,
    heads: int,
    *,
    bias: torch.Tensor | None = None,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Add the bias, norm heads of queries and keys, and rotate them; queries stay, keys and values go to their slots.

    All in float32, rounded once.
    8-bit keys and values get one scale per token and head, its largest magnitude / 448, from the rotated float32 key.
    A row reads its heads once, and writes them once: 4 · (heads + 2 · kv_heads) · head_dim bytes in 16 bits.

    qkv: [rows, (heads + 2 · kv_heads) · head_dim], rows may be strided
    positions, slots: int32 [rows]; a slot is block · block_size + offset
    table: float32 [max_positions, 2, rotated / 2], cosines then sines; the dimensions after the rotated ones stay, and
        bias and norms are for models that rotate all; None: nothing is rotated
    bias: [(heads + 2 · kv_heads) · head_dim]; q_norm and k_norm, both or neither: [head_dim], with `eps`
    """
    kv_heads, head_dim = kv.keys.shape[1:]
    rotated = head_dim if table is None else 2 * table.shape[2]
    rest = head_dim - rotated
    if rest and (bias is not None or q_norm is not None):
        raise ValueError("bias and norms of heads that are rotated in part are not computed")
    width = triton.next_power_of_2(rotated // 2)
    tile = max(1, TILE // width)
    rotate_heads[(qkv.shape[0], triton.cdiv(heads + 2 * kv_heads, tile))](
        qkv,
        qkv.stride(0),
        bias,
        q_norm,
        k_norm,
        eps,
        positions,
        slots,
        table,
        kv.keys,
        kv.values,
        kv.key_scales,
        kv.value_scales,
        kv.keys.stride(0),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        HALF=width,
        ROTATED=rotated,
        REST=triton.next_power_of_2(rest) if rest else 0,
        TILE_HEADS=tile,
        ROTATE=table is not None,
        BIAS=bias is not None,
        NORM=q_norm is not None,
        SCALED=kv.key_scales is not None,
        E4M3_MAX=E4M3_MAX,
        num_warps=2,
    )
