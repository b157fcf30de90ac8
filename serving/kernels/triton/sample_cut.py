"""Draws from rows that top-k, top-p or min-p cut, without sorting and without waiting for the host.

A token's weight is exp((logit − largest) / temperature), from 0 to 1. The vocabulary's weight is measured octave by
octave; the tokens down to the first octave that surely holds the cut are the candidates, in order of their ids. A
candidate's predecessors, in falling order of weight and then of id, are found by comparing it with all others. Rows
with more than CANDIDATES are left to `serving.kernels.triton.sample_wide`.
"""

from __future__ import annotations

from typing import NamedTuple

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
    first_above,
    read_blocks,
    read_float,
    read_high,
    read_logits,
    weigh,
)

# Octave j holds the weights from 2^-j on, together with those of the octaves before it; the last holds all.
OCTAVES = 32
CANDIDATES = 1024
# Candidates that all others are compared with at a time: 1024 × 8 comparisons, 32 by each of 256 threads. At 32, the
# kernel spilled.
_AT_ONCE = 8
_OCTAVES_AT_ONCE = 4  # of 4096 weights: 64 comparisons for each of 256 threads
_COLUMNS: tl.constexpr = tl.constexpr(COLUMNS)
_FLAGS: tl.constexpr = tl.constexpr(FLAGS)
_ADJUSTED: tl.constexpr = tl.constexpr(ADJUSTED)
_TEMPERATURE: tl.constexpr = tl.constexpr(TEMPERATURE)
_TOP_K: tl.constexpr = tl.constexpr(TOP_K)
_TOP_P: tl.constexpr = tl.constexpr(TOP_P)
_MIN_P: tl.constexpr = tl.constexpr(MIN_P)
_OCTAVES: tl.constexpr = tl.constexpr(OCTAVES)
_CANDIDATES: tl.constexpr = tl.constexpr(CANDIDATES)


class Candidates(NamedTuple):
    """Tokens that a cut may keep.

    counts, masses: int32 and float32 [max_rows, parts, OCTAVES], the number and the weight of each octave's tokens
    weights, tokens: float32 and int32 [max_rows, CANDIDATES], in order of the ids
    """

    counts: torch.Tensor
    masses: torch.Tensor
    weights: torch.Tensor
    tokens: torch.Tensor


@triton.jit
def _threshold(octave):
    """Return the least weight of an octave: 2^-octave, by its bits; of the last, the least positive number."""
    return tl.where(octave == _OCTAVES - 1, 1, (127 - octave) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _weigh_part(rows, row, part, high, PART: tl.constexpr):
    """Return the weights of one part of a row."""
    flags = tl.load(rows.settings + row * _COLUMNS + _FLAGS)
    column = part * PART + tl.arange(0, PART)
    x = read_logits(rows, row, column, column < rows.vocab, flags & _ADJUSTED)
    return weigh(x, high, read_float(rows.settings, row, _TEMPERATURE))


@triton.jit
def _measure(rows, scan, candidates, listed, PART: tl.constexpr, PARTS: tl.constexpr, AT_ONCE: tl.constexpr):
    """Measure the octaves of one part of one cut row per program."""
    row, part = tl.load(listed + tl.program_id(0)).to(tl.int64), tl.program_id(1)
    high, _place, good = read_high(scan, row, PARTS)
    if good:
        weights = _weigh_part(rows, row, part, high, PART)
        for first in range(0, _OCTAVES, AT_ONCE):
            octave = first + tl.arange(0, AT_ONCE)
            inside = weights[None, :] >= _threshold(octave)[:, None]
            at = (row * scan.parts + part) * _OCTAVES + octave
            tl.store(candidates.counts + at, tl.sum(inside.to(tl.int32), 1))
            tl.store(candidates.masses + at, tl.sum(tl.where(inside, weights[None, :], 0.0), 1))


@triton.jit
def last_octave(rows, scan, candidates, row, total, PARTS: tl.constexpr):
    """Return the first octave that holds every token that the row keeps, and how many it holds of each part.

    total: the weight of all tokens, float64
    """
    octave, part = tl.arange(0, _OCTAVES)[None, :], tl.arange(0, PARTS)[:, None]
    at = (row * scan.parts + part) * _OCTAVES + octave
    counts = tl.load(candidates.counts + at, mask=part < scan.parts, other=0)
    masses = tl.load(candidates.masses + at, mask=part < scan.parts, other=0.0)
    top_k = tl.load(rows.settings + row * _COLUMNS + _TOP_K)
    top_p = read_float(rows.settings, row, _TOP_P)
    # Top-p counts from the mass of what top-k leaves, so that all of that is needed.
    enough = tl.sum(counts, 0) >= top_k
    if top_k == 0:
        limit = tl.where(top_p < 1.0, top_p, 2.0).to(tl.float64) * total  # of 1 and more, top-p cuts nothing
        enough = tl.sum(masses.to(tl.float64), 0) >= limit
        enough = enough | (_threshold(tl.arange(0, _OCTAVES)) <= read_float(rows.settings, row, _MIN_P))
    last = tl.min(tl.where(enough, tl.arange(0, _OCTAVES), _OCTAVES - 1))
    return last, tl.sum(tl.where(octave == last, counts, 0), 1)


@triton.jit
def _gather(rows, scan, candidates, listed, PART: tl.constexpr, PARTS: tl.constexpr, BLOCKS: tl.constexpr):
    """List the candidates of one part of one cut row per program."""
    row, part = tl.load(listed + tl.program_id(0)).to(tl.int64), tl.program_id(1)
    high, _place, good = read_high(scan, row, PARTS)
    if good:
        temperature = read_float(rows.settings, row, _TEMPERATURE)
        total = tl.sum(read_blocks(scan, row, high, temperature, PARTS, BLOCKS))
        last, counts = last_octave(rows, scan, candidates, row, total, PARTS)
        if tl.sum(counts) <= _CANDIDATES:
            before = tl.sum(tl.where(tl.arange(0, PARTS) < part, counts, 0))
            weights = _weigh_part(rows, row, part, high, PART)
            wanted = weights >= _threshold(last)
            at = row * _CANDIDATES + before + tl.cumsum(wanted.to(tl.int32), 0) - 1
            tl.store(candidates.weights + at, weights, mask=wanted)
            tl.store(candidates.tokens + at, part * PART + tl.arange(0, PART), mask=wanted)


@triton.jit
def _predecessors(candidates, row, weights, count, AT_ONCE: tl.constexpr):
    """Return, for each of a row's candidates, the number and the weight of those that come before it."""
    index = tl.arange(0, _CANDIDATES)
    number, mass = tl.zeros([_CANDIDATES], tl.int32), tl.zeros([_CANDIDATES], tl.float32)
    for start in range(0, count, AT_ONCE):
        other = start + tl.arange(0, AT_ONCE)
        theirs = tl.load(candidates.weights + row * _CANDIDATES + other, mask=other < count, other=0.0)
        tied = (theirs[None, :] == weights[:, None]) & (other[None, :] < index[:, None])
        before = (theirs[None, :] > weights[:, None]) | tied
        number += tl.sum(before.to(tl.int32), 1)
        mass += tl.sum(tl.where(before, theirs[None, :], 0.0), 1)
    return number, mass


@triton.jit
def _draw_cut(
    rows, scan, candidates, points, listed, out, PARTS: tl.constexpr, BLOCKS: tl.constexpr, AT_ONCE: tl.constexpr
):
    """Draw one cut row's token per program."""
    row = tl.load(listed + tl.program_id(0)).to(tl.int64)
    high, _place, good = read_high(scan, row, PARTS)
    if good:
        temperature = read_float(rows.settings, row, _TEMPERATURE)
        total = tl.sum(read_blocks(scan, row, high, temperature, PARTS, BLOCKS))
        _last, counts = last_octave(rows, scan, candidates, row, total, PARTS)
        count = tl.sum(counts)
        if count <= _CANDIDATES:
            index = tl.arange(0, _CANDIDATES)
            weights = tl.load(candidates.weights + row * _CANDIDATES + index, mask=index < count, other=0.0)
            number, mass = _predecessors(candidates, row, weights, count, AT_ONCE)
            top_k = tl.load(rows.settings + row * _COLUMNS + _TOP_K)
            within = (index < count) & (number < tl.where(top_k > 0, top_k, count))
            if top_k > 0:
                total = tl.sum(tl.where(within, weights, 0.0).to(tl.float64))
            # The smallest set whose mass reaches top_p: every token whose predecessors fall short of it.
            top_p = read_float(rows.settings, row, _TOP_P)
            limit = tl.where(top_p < 1.0, top_p, 2.0).to(tl.float64) * total
            kept = within & (mass < limit) & (weights >= read_float(rows.settings, row, _MIN_P))
            drawn = tl.where(kept | (number == 0), weights, 0.0).to(tl.float64)
            found, _before = first_above(drawn, tl.load(points + row) * tl.sum(drawn))
            tl.store(out + row, tl.load(candidates.tokens + row * _CANDIDATES + found))


def make_candidates(scan: Scan) -> Candidates:
    """Return memory for the candidates of as many rows as `scan` has."""
    rows, device = len(scan.high), scan.high.device
    shapes = ((torch.int32, scan.parts, OCTAVES), (torch.float32, scan.parts, OCTAVES))
    lists = ((torch.float32, CANDIDATES), (torch.int32, CANDIDATES))
    return Candidates(*(torch.empty(rows, *shape, dtype=dtype, device=device) for dtype, *shape in (*shapes, *lists)))


def choose_cut(
    rows: Rows, scan: Scan, candidates: Candidates, points: torch.Tensor, listed: torch.Tensor, out: torch.Tensor
) -> None:
    """Write to `out` the tokens of the rows in `listed` (int32 [cut rows]) whose scan is done, unless a row is wide.

    points: float64 [rows], in [0, 1): where in its distribution a row is drawn
    """
    sizes = {"PARTS": triton.next_power_of_2(scan.parts)}
    grid, blocks = (len(listed), scan.parts), PART // BLOCK
    _measure[grid](rows, scan, candidates, listed, PART=PART, AT_ONCE=_OCTAVES_AT_ONCE, **sizes, num_warps=8)
    _gather[grid](rows, scan, candidates, listed, PART=PART, BLOCKS=blocks, **sizes, num_warps=8)
    _draw_cut[len(listed),](
        rows, scan, candidates, points, listed, out, BLOCKS=blocks, AT_ONCE=_AT_ONCE, **sizes, num_warps=8
    )
