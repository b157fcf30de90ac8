"""Rotary embedding (Su et al., arXiv 2104.09864) of queries and keys; keys and values are written into the cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _rope_and_store(
    qkv,
    qkv_stride,
    positions,
    slots,
    table,
    keys,
    values,
    token_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
):
    """Process one row and head per program: rotate queries in place, rotate keys into the cache, copy values there.

    HALF: half of the head, rounded up to a power of two.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half = HEAD_DIM // 2
    lane = tl.arange(0, HALF)
    inside = lane < half
    source = qkv + row * qkv_stride + head * HEAD_DIM + lane
    first = tl.load(source, mask=inside, other=0.0)
    second = tl.load(source + half, mask=inside, other=0.0)
    slot = tl.load(slots + row).to(tl.int64)
    if head < HEADS + KV_HEADS:
        angle = table + tl.load(positions + row).to(tl.int64) * HEAD_DIM + lane
        cos = tl.load(angle, mask=inside, other=0.0)
        sin = tl.load(angle + half, mask=inside, other=0.0)
        a, b = first.to(tl.float32), second.to(tl.float32)
        first = (a * cos - b * sin).to(qkv.dtype.element_ty)
        second = (b * cos + a * sin).to(qkv.dtype.element_ty)
    if head < HEADS:
        tl.store(source, first, mask=inside)
        tl.store(source + half, second, mask=inside)
    elif head < HEADS + KV_HEADS:
        target = keys + slot * token_stride + (head - HEADS) * HEAD_DIM + lane
        tl.store(target, first, mask=inside)
        tl.store(target + half, second, mask=inside)
    else:
        target = values + slot * token_stride + (head - HEADS - KV_HEADS) * HEAD_DIM + lane
        tl.store(target, first, mask=inside)
        tl.store(target + half, second, mask=inside)


def rope_and_store(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    table: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    heads: int,
) -> None:
    """Rotate queries in place; write rotated keys, and values, to their slots.

    qkv: [rows, (heads + 2 · kv_heads) · head_dim], rows may be strided
    positions, slots: int32 [rows]; a slot is block · block_size + offset
    table: float32 [max_positions, 2, head_dim / 2], cosines then sines
    keys, values: [num_slots, kv_heads, head_dim] of one layer; a slot is contiguous, slots may be strided
    """
    kv_heads, head_dim = keys.shape[1:]
    _rope_and_store[(qkv.shape[0], heads + 2 * kv_heads)](
        qkv,
        qkv.stride(0),
        positions,
        slots,
        table,
        keys,
        values,
        keys.stride(0),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        HALF=triton.next_power_of_2(head_dim // 2),
        num_warps=1,
    )
