"""Draws from cut rows that keep more tokens than `serving.kernels.triton.sample_cut` lists; other rows end at once.

The cut is the smallest weight whose heavier tokens are fewer (or lighter) than its limit: all of those are kept, and of
the tokens of exactly that weight the first ones. Non-negative floats are in the order of their bits, so that it is
found by bisection over bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from serving.kernels.triton.sample import (
    ADJUSTED,
    BLOCK,
    COLUMNS,
    FLAGS,
    MIN_P,
    PART,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    Rows,
    Scan,
    read_blocks,
    read_float,
    read_high,
    read_logits,
    weigh,
)
from serving.kernels.triton.sample_cut import CANDIDATES, Candidates, last_octave

# Weights that are looked at together, 8 by each of 512 threads. At 16, Triton 3.9 takes 8 bytes of stack per thread.
_TILE = 4096
_COLUMNS: tl.constexpr = tl.constexpr(COLUMNS)
_FLAGS: tl.constexpr = tl.constexpr(FLAGS)
_ADJUSTED: tl.constexpr = tl.constexpr(ADJUSTED)
_TEMPERATURE: tl.constexpr = tl.constexpr(TEMPERATURE)
_TOP_K: tl.constexpr = tl.constexpr(TOP_K)
_TOP_P: tl.constexpr = tl.constexpr(TOP_P)
_MIN_P: tl.constexpr = tl.constexpr(MIN_P)
_CANDIDATES: tl.constexpr = tl.constexpr(CANDIDATES)
_NOWHERE: tl.constexpr = tl.constexpr(1 << 30)
_ONE: tl.constexpr = tl.constexpr(0x3F800000)  # the bits of the largest weight


@triton.jit
def _weights(rows, row, start, high, TILE: tl.constexpr):
    """Return the weights of TILE tokens, and their bits."""
    flags = tl.load(rows.settings + row * _COLUMNS + _FLAGS)
    column = start + tl.arange(0, TILE)
    x = read_logits(rows, row, column, column < rows.vocab, flags & _ADJUSTED)
    weights = weigh(x, high, read_float(rows.settings, row, _TEMPERATURE))
    return weights, weights.to(tl.int32, bitcast=True)


@triton.jit
def _heavier(rows, row, high, bits, TILE: tl.constexpr):
    """Return the number and the float64 weight of the tokens whose weights are above those of `bits`."""
    count, mass = tl.zeros((), tl.int32), tl.zeros((), tl.float64)
    for start in range(0, rows.vocab, TILE):
        weights, own = _weights(rows, row, start, high, TILE)
        count += tl.sum((own > bits).to(tl.int32))
        mass += tl.sum(tl.where(own > bits, weights, 0.0)).to(tl.float64)
    return count, mass


@triton.jit
def _search(rows, row, high, low, limit, BY_COUNT: tl.constexpr, TILE: tl.constexpr):
    """Return the least bits, from `low` on, above which the number (or the weight) of tokens is below `limit`."""
    bits = tl.zeros((), tl.int32) + _ONE
    while low < bits:
        middle = (low + bits) // 2
        count, mass = _heavier(rows, row, high, middle, TILE)
        less = count < limit if BY_COUNT else mass < limit
        bits = tl.where(less, middle, bits)
        low = tl.where(less, low, middle + 1)
    return bits


@triton.jit
def _cut(rows, row, high, total, TILE: tl.constexpr):
    """Return the bits of the cut, and how many tokens of exactly that weight are kept."""
    top_k = tl.load(rows.settings + row * _COLUMNS + _TOP_K)
    top_p = read_float(rows.settings, row, _TOP_P).to(tl.float64)
    bits, ties, mass = tl.zeros((), tl.int32), tl.zeros((), tl.int32) + _NOWHERE, total
    if top_k > 0:
        bits = _search(rows, row, high, bits, top_k, True, TILE)
        count, heavier = _heavier(rows, row, high, bits, TILE)
        ties = top_k - count
        mass = heavier + ties * bits.to(tl.float32, bitcast=True).to(tl.float64)
    if top_p < 1.0:
        # A share of the mass that top-k leaves, so that the cut is nowhere lower. A row that keeps its likeliest token
        # alone is not wide: the limit is above 0.
        limit = top_p * mass
        own = _search(rows, row, high, bits, limit, False, TILE)
        _, heavier = _heavier(rows, row, high, own, TILE)
        weight = tl.maximum(own.to(tl.float32, bitcast=True).to(tl.float64), 1e-38)
        kept = tl.minimum(tl.ceil((limit - heavier) / weight), 1e9).to(tl.int32)
        ties = tl.where(own == bits, tl.minimum(ties, kept), kept)
        bits = own
    least = tl.load(rows.settings + row * _COLUMNS + _MIN_P)  # its bits, as they are stored
    ties = tl.where(least > bits, 0, ties)
    bits = tl.where(least > bits, least - 1, bits)
    return bits, ties


@triton.jit
def _walk(rows, row, high, bits, ties, target, TILE: tl.constexpr):
    """Return the token at which the cumulative weight of the kept tokens exceeds `target`, in order of ids."""
    found, last = tl.zeros((), tl.int32) - 1, tl.zeros((), tl.int32)
    before, seen = tl.zeros((), tl.float64), tl.zeros((), tl.int32)
    for start in range(0, rows.vocab, TILE):
        weights, own = _weights(rows, row, start, high, TILE)
        tied = (own == bits).to(tl.int32)
        kept = (own > bits) | ((tied > 0) & (seen + tl.cumsum(tied, 0) <= ties))
        kept = kept & (own > 0)
        cumulative = before + tl.cumsum(tl.where(kept, weights, 0.0).to(tl.float64), 0)
        token = start + tl.arange(0, TILE)
        first = tl.min(tl.where(kept & (cumulative > target), token, _NOWHERE))
        found = tl.where((found < 0) & (first < _NOWHERE), first, found)
        last = tl.maximum(last, tl.max(tl.where(kept, token, 0)))
        before = tl.max(cumulative)
        seen += tl.sum(tied)
    return tl.where(found >= 0, found, last)


@triton.jit
def _draw_wide(
    rows, scan, candidates, points, listed, out, PARTS: tl.constexpr, BLOCKS: tl.constexpr, TILE: tl.constexpr
):
    """Draw one cut row's token per program, if the row is wide."""
    row = tl.load(listed + tl.program_id(0)).to(tl.int64)
    high, _, good = read_high(scan, row, PARTS)
    if good:
        temperature = read_float(rows.settings, row, _TEMPERATURE)
        total = tl.sum(read_blocks(scan, row, high, temperature, PARTS, BLOCKS))
        _, counts = last_octave(rows, scan, candidates, row, total, PARTS)
        if tl.sum(counts) > _CANDIDATES:
            bits, ties = _cut(rows, row, high, total, TILE)
            _, heavier = _heavier(rows, row, high, bits, TILE)
            kept = heavier + ties * bits.to(tl.float32, bitcast=True).to(tl.float64)
            tl.store(out + row, _walk(rows, row, high, bits, ties, tl.load(points + row) * kept, TILE))


def choose_wide(
    rows: Rows, scan: Scan, candidates: Candidates, points: torch.Tensor, listed: torch.Tensor, out: torch.Tensor
) -> None:
    """Write to `out` the tokens of those rows in `listed` that `choose_cut`, which ran before, has left out."""
    parts = triton.next_power_of_2(scan.parts)
    tile = min(_TILE, triton.next_power_of_2(rows.vocab))
    # Left alone, ptxas (Triton 3.6) spills two registers to fit a second program; a thread of 512 may have 128.
    _draw_wide[len(listed),](
        rows,
        scan,
        candidates,
        points,
        listed,
        out,
        PARTS=parts,
        BLOCKS=PART // BLOCK,
        TILE=tile,
        num_warps=16,
        maxnreg=128,
    )
