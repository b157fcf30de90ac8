"""The partial results of a row's splits, added: the second half of single-token attention."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from serving.kernels.triton.attention_work import MAX_SPLITS, SPLIT_KEYS, AttentionWork, split_count

# Programs that share the rows and heads; each takes a few microseconds when a large batch gives it eight.
PROGRAMS = 1024


@triton.jit
def combine_splits(
    parts,
    stats,
    positions,
    counts,
    out,
    out_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    CAPACITY: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT_KEYS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    """Add the splits of one row and head after another, in a tree of fixed shape: SPLITS leaves, a power of two."""
    dim = tl.arange(0, DIM)
    split = tl.arange(0, SPLITS)
    for at in range(tl.program_id(0), tl.load(counts) * HEADS, tl.num_programs(0)):
        row = at // HEADS
        head = at % HEADS
        splits = split_count(tl.load(positions + row) + 1, SPLIT_KEYS, MAX_SPLITS)
        if splits > 1:
            there = split < splits
            place = (row * CAPACITY + split).to(tl.int64) * HEADS + head
            highest = tl.load(stats + place * 2, mask=there, other=float("-inf"))
            weight = tl.exp2(highest - tl.max(highest, 0))
            total = tl.sum(weight * tl.load(stats + place * 2 + 1, mask=there, other=0.0), 0)
            inside = there[:, None]
            if DIM != HEAD_DIM:
                inside = inside & (dim < HEAD_DIM)[None, :]
            part = tl.load(parts + place[:, None] * HEAD_DIM + dim[None, :], mask=inside, other=0.0)
            result = tl.sum(part * weight[:, None], 0) / total
            target = out + row.to(tl.int64) * out_stride + head * HEAD_DIM + dim
            tl.store(target, result.to(out.dtype.element_ty), mask=dim < HEAD_DIM)


def combine(
    work: AttentionWork, positions: torch.Tensor, counts: torch.Tensor, out: torch.Tensor, heads: int, head_dim: int
) -> None:
    """Write the results of the first counts[0] rows that have more than one split to out [rows, heads · head_dim]."""
    rows, splits, dim = min(work.rows, len(out)), triton.next_power_of_2(work.splits), triton.next_power_of_2(head_dim)
    combine_splits[(min(rows * heads, PROGRAMS if out.is_cuda else work.programs),)](
        work.parts,
        work.stats,
        positions,
        counts,
        out,
        out.stride(0),
        HEADS=heads,
        HEAD_DIM=head_dim,
        DIM=dim,
        CAPACITY=work.splits,
        SPLITS=splits,
        SPLIT_KEYS=SPLIT_KEYS,
        MAX_SPLITS=MAX_SPLITS,
        # 128 numbers per thread, in registers at once: 256 of them spill (sm_90).
        num_warps=max(1, splits * dim // 4096),
    )
