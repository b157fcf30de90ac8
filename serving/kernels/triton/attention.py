"""Paged attention, for prefill chunks and single tokens alike: flash attention (Dao et al., arXiv 2205.14135) through
block tables (Kwon et al., arXiv 2309.06180), with the context split over programs for single tokens (flash-decoding).

The query heads that share a KV head stand side by side on the tile's rows, so KV is read once for all of them. Tiles
and splits begin at fixed positions, independent of the batch, so a row's result does not depend on its neighbours.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Keys per loop step: a tile of 64 keys of 128 dimensions in bfloat16 is 16 KB of shared memory, twice for K and V.
BLOCK_KV = 64
# Keys of one split: a lone request of 4096 tokens still fills 8 programs for each KV head. Not tuned on a GPU yet.
SPLIT_KEYS = 512
# Query positions of a prefill tile times heads that share a KV head: rows of the tensor-core tile.
TILE_ROWS = 64


@triton.jit
def _attend(
    q,
    q_stride,
    keys,
    values,
    token_stride,
    units,
    tables,
    table_stride,
    out,
    out_stride,
    stats,
    heads,
    total_rows,
    scale,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    SPLIT_KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attend for one unit, int32 [4]: first row, query positions, position of the first, row of its block table.

    SPLIT: out is float32 [splits, rows, heads, head_dim], unnormalised, and stats [splits, rows, heads, 2] holds each
    row's maximum and sum. UPCAST: the interpreter's bfloat16 dot is silently wrong (Triton 3.6 and 3.9).
    """
    unit = units + tl.program_id(0) * 4
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    first = tl.load(unit)
    count = tl.load(unit + 1)
    start = tl.load(unit + 2)
    table = tables + tl.load(unit + 3).to(tl.int64) * table_stride
    end = start + count
    begin = split * SPLIT_KEYS if SPLIT else 0
    if begin < end and count > 0:
        m = tl.arange(0, ROWS)
        query = m // GROUP
        head = kv_head * GROUP + m % GROUP
        used = query < count
        row = (first + query).to(tl.int64)
        dim = tl.arange(0, HEAD_DIM)
        tile = tl.load(
            q + row[:, None] * q_stride + head[:, None] * HEAD_DIM + dim[None, :], mask=used[:, None], other=0.0
        )
        if UPCAST:
            tile = tile.to(tl.float32)
        highest = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        acc = tl.zeros((ROWS, HEAD_DIM), tl.float32)
        stop = tl.minimum(end, begin + SPLIT_KEYS) if SPLIT else end
        for position in range(begin, stop, BLOCK_KV):
            token = position + tl.arange(0, BLOCK_KV)
            known = token < stop
            block = tl.load(table + token // BLOCK_SIZE, mask=known, other=0).to(tl.int64)
            place = (block * BLOCK_SIZE + token % BLOCK_SIZE) * token_stride + kv_head * HEAD_DIM
            k = tl.load(keys + place[None, :] + dim[:, None], mask=known[None, :], other=0.0)
            v = tl.load(values + place[:, None] + dim[None, :], mask=known[:, None], other=0.0)
            if UPCAST:
                k = k.to(tl.float32)
                v = v.to(tl.float32)
            scores = tl.dot(tile, k, input_precision="ieee") * scale
            seen = (token[None, :] <= start + query[:, None]) & used[:, None]
            scores = tl.where(seen, scores, float("-inf"))
            highest_now = tl.maximum(highest, tl.max(scores, 1))
            # A row that has seen no key yet: keep exp(-inf - -inf) from being NaN.
            base = tl.where(highest_now == float("-inf"), 0.0, highest_now)
            weights = tl.exp(scores - base[:, None])
            shrink = tl.exp(highest - base)
            total = total * shrink + tl.sum(weights, 1)
            part = weights if UPCAST else weights.to(v.dtype)
            acc = acc * shrink[:, None] + tl.dot(part, v, input_precision="ieee")
            highest = highest_now
        if SPLIT:
            target = (split.to(tl.int64) * total_rows + row) * heads + head
            tl.store(out + target[:, None] * HEAD_DIM + dim[None, :], acc, mask=used[:, None])
            tl.store(stats + target * 2, highest, mask=used)
            tl.store(stats + target * 2 + 1, total, mask=used)
        else:
            # Rows beyond the unit have no keys and are not stored.
            result = (acc / tl.where(used, total, 1.0)[:, None]).to(out.dtype.element_ty)
            tl.store(
                out + row[:, None] * out_stride + head[:, None] * HEAD_DIM + dim[None, :], result, mask=used[:, None]
            )


@triton.jit
def _combine(
    parts,
    stats,
    positions,
    out,
    out_stride,
    heads,
    total_rows,
    HEAD_DIM: tl.constexpr,
    SPLIT_KEYS: tl.constexpr,
):
    """Add the splits of one row and head per program, in order of position."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dim = tl.arange(0, HEAD_DIM)
    splits = tl.load(positions + row) // SPLIT_KEYS + 1
    highest = float("-inf")
    for split in range(0, splits):
        place = (tl.cast(split, tl.int64) * total_rows + row) * heads + head
        highest = tl.maximum(highest, tl.load(stats + place * 2))
    total = 0.0
    acc = tl.zeros((HEAD_DIM,), tl.float32)
    for split in range(0, splits):
        place = (tl.cast(split, tl.int64) * total_rows + row) * heads + head
        weight = tl.exp(tl.load(stats + place * 2) - highest)
        total += weight * tl.load(stats + place * 2 + 1)
        acc += weight * tl.load(parts + place * HEAD_DIM + dim)
    tl.store(out + row * out_stride + head * HEAD_DIM + dim, (acc / total).to(out.dtype.element_ty))


class SplitScratch:
    """Partial results of single-token rows: float32, for `rows` rows of up to `max_len` positions."""

    def __init__(self, rows: int, heads: int, head_dim: int, max_len: int, device: torch.device) -> None:
        self.splits = triton.cdiv(max_len, SPLIT_KEYS)
        self.parts = torch.empty(self.splits, rows, heads, head_dim, device=device)
        self.stats = torch.empty(self.splits, rows, heads, 2, device=device)


def attend_chunks(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    units: torch.Tensor,
    tables: torch.Tensor,
    out: torch.Tensor,
    heads: int,
    block_size: int,
    *,
    upcast: bool = False,
) -> None:
    """Compute causal attention of prefill chunks, each unit one tile of query positions.

    q: [rows, ≥ heads · head_dim], rows may be strided; keys, values: [num_slots, kv_heads, head_dim] of one layer
    units: int32 [n, 4], as `_attend` reads them, at most `queries_a_tile` positions each
    tables: int32 [sequences, blocks]
    out: [rows, heads · head_dim]; rows outside all units are not written. head_dim is a power of two, at least 16.
    """
    kv_heads, head_dim = keys.shape[1:]
    group = heads // kv_heads
    _attend[(units.shape[0], kv_heads, 1)](
        q,
        q.stride(0),
        keys,
        values,
        keys.stride(0),
        units,
        tables,
        tables.stride(0),
        out,
        out.stride(0),
        out,
        heads,
        q.shape[0],
        head_dim**-0.5,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        ROWS=_tile_rows(group, queries_a_tile(group)),
        BLOCK_KV=BLOCK_KV,
        SPLIT_KEYS=SPLIT_KEYS,
        SPLIT=False,
        UPCAST=upcast,
    )


def attend_tokens(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    units: torch.Tensor,
    positions: torch.Tensor,
    tables: torch.Tensor,
    out: torch.Tensor,
    heads: int,
    block_size: int,
    scratch: SplitScratch,
    *,
    upcast: bool = False,
) -> None:
    """Compute `attend_chunks` for units of one row: unit i is row i at positions[i] (int32 [rows])."""
    kv_heads, head_dim = keys.shape[1:]
    rows, group = q.shape[0], heads // kv_heads
    _attend[(rows, kv_heads, scratch.splits)](
        q,
        q.stride(0),
        keys,
        values,
        keys.stride(0),
        units,
        tables,
        tables.stride(0),
        scratch.parts,
        0,
        scratch.stats,
        heads,
        rows,
        head_dim**-0.5,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        ROWS=_tile_rows(group, 1),
        BLOCK_KV=BLOCK_KV,
        SPLIT_KEYS=SPLIT_KEYS,
        SPLIT=True,
        UPCAST=upcast,
    )
    _combine[(rows, heads)](
        scratch.parts,
        scratch.stats,
        positions,
        out,
        out.stride(0),
        heads,
        rows,
        HEAD_DIM=head_dim,
        SPLIT_KEYS=SPLIT_KEYS,
        num_warps=1,
    )


def queries_a_tile(group: int) -> int:
    """Return the query positions of one prefill unit when `group` heads share a KV head."""
    return max(1, TILE_ROWS // group)


def _tile_rows(group: int, queries: int) -> int:
    """Return the rows of the tile: a power of two, and at least the 16 that a tensor core takes."""
    return max(16, triton.next_power_of_2(group * queries))
