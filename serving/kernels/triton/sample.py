"""One token per row of logits, in two launches: a scan of every part of the vocabulary, then a choice by row.

A row is greedy (its argmax), drawn (inverse CDF over all tokens, in order of their ids) or cut (top-k, top-p, min-p:
`serving.kernels.triton.sample_cut` chooses its token). A row's result depends on that row alone: parts and blocks have
fixed sizes, sums a fixed order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

# Tokens that one program scans, and those whose probabilities are summed together: a draw adds up the blocks' sums,
# then looks at one block.
PART, BLOCK = 4096, 256
# Columns of the settings, int32 [rows, COLUMNS]. Floats are stored as their bits.
FLAGS, TEMPERATURE, TOP_K, TOP_P, MIN_P, SLOT, MASK, REPETITION, FREQUENCY, PRESENCE = range(10)
COLUMNS = 16
# Bits of FLAGS: the row is drawn, cut, adjusted. Others are greedy.
DRAWN, CUT, ADJUSTED = 1, 2, 4
# Triton reads only constants that are declared as such.
_FLAGS: tl.constexpr = tl.constexpr(FLAGS)
_TEMPERATURE: tl.constexpr = tl.constexpr(TEMPERATURE)
_COLUMNS: tl.constexpr = tl.constexpr(COLUMNS)
_DRAWN: tl.constexpr = tl.constexpr(DRAWN)
_CUT: tl.constexpr = tl.constexpr(CUT)
_ADJUSTED: tl.constexpr = tl.constexpr(ADJUSTED)
_NOWHERE: tl.constexpr = tl.constexpr(1 << 30)


class Rows(NamedTuple):
    """Where kernels find logits and settings.

    logits: [rows, vocab] in any floating type, row after row `stride` elements apart
    adjusted: float32 [max_rows, width], what `adjust` made of the rows whose flags say so
    settings: int32 [rows, COLUMNS]
    """

    logits: torch.Tensor
    stride: int
    adjusted: torch.Tensor
    width: int
    vocab: int
    settings: torch.Tensor


class Scan(NamedTuple):
    """Figures of each part and block; a row has `parts` parts of PART tokens.

    high, place, bad: [max_rows, parts], each part's largest logit, its first token, and how many are NaN or +inf
    block_sum: float32 [max_rows, parts · blocks of a part], of rows that are drawn the sum of exp((logit − the part's
        largest) / temperature)
    """

    high: torch.Tensor
    place: torch.Tensor
    bad: torch.Tensor
    block_sum: torch.Tensor
    parts: int


@triton.jit
def read_float(settings, row, column):
    """Return one float of a row's settings."""
    return tl.load(settings + row * _COLUMNS + column).to(tl.float32, bitcast=True)


@triton.jit
def read_logits(rows, row, column, wanted, adjusted):
    """Return float32 logits of a row, -inf where not `wanted`."""
    # By element: the interpreter of 3.9 takes no mask that was made of a scalar.
    elsewhere = (adjusted + tl.zeros_like(column)) != 0
    raw = tl.load(rows.logits + row * rows.stride + column, mask=wanted & ~elsewhere, other=float("-inf"))
    own = tl.load(rows.adjusted + row * rows.width + column, mask=wanted & elsewhere, other=float("-inf"))
    return tl.where(elsewhere, own, raw.to(tl.float32))


@triton.jit
def weigh(x, high, temperature):
    """Return exp((x − high) / temperature), at most 1, and 0 where both are -inf. Both are divided, as the reference
    does, so that equal logits stay equal."""
    return tl.where(x == float("-inf"), 0.0, tl.exp(x / temperature - high / temperature))


@triton.jit
def read_high(scan, row, PARTS: tl.constexpr):
    """Return a row's largest logit, the first token that has it, and whether the row can be sampled."""
    index = tl.arange(0, PARTS)
    inside = index < scan.parts
    highs = tl.load(scan.high + row * scan.parts + index, mask=inside, other=float("-inf"))
    places = tl.load(scan.place + row * scan.parts + index, mask=inside, other=0)
    bad = tl.sum(tl.load(scan.bad + row * scan.parts + index, mask=inside, other=0))
    high = tl.max(highs)
    place = tl.min(tl.where(inside & (highs == high), places, _NOWHERE))
    return high, place, (bad == 0) & (high != float("-inf"))


@triton.jit
def read_blocks(scan, row, high, temperature, PARTS: tl.constexpr, BLOCKS: tl.constexpr):
    """Return float64 sums of exp((logit − high) / temperature) by block, [PARTS · BLOCKS]."""
    block = tl.arange(0, PARTS * BLOCKS)
    inside = block < scan.parts * BLOCKS
    sums = tl.load(scan.block_sum + row * scan.parts * BLOCKS + block, mask=inside, other=0.0)
    highs = tl.load(scan.high + row * scan.parts + block // BLOCKS, mask=inside, other=float("-inf"))
    return sums.to(tl.float64) * weigh(highs, high, temperature).to(tl.float64)


@triton.jit
def first_above(weights, target):
    """Return the first index at which cumulative float64 weights exceed target, never one of weight 0, and the sum of
    those before it. Rounding may leave the target above all: then the last index that has weight."""
    index = tl.arange(0, weights.shape[0])
    cumulative = tl.cumsum(weights, 0)
    first = tl.min(tl.where((cumulative > target) & (weights > 0), index, _NOWHERE))
    last = tl.max(tl.where(weights > 0, index, 0))
    found = tl.where(first < _NOWHERE, first, last)
    return found, tl.sum(tl.where(index == found, cumulative - weights, 0.0))


@triton.jit
def _scan(rows, scan, PART: tl.constexpr, BLOCK: tl.constexpr):
    """Look at one part of one row per program."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    blocks: tl.constexpr = PART // BLOCK
    flags = tl.load(rows.settings + row * _COLUMNS + _FLAGS)
    column = part * PART + tl.arange(0, blocks)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = read_logits(rows, row, column, column < rows.vocab, flags & _ADJUSTED)
    broken = (x != x) | (x == float("inf"))
    x = tl.where(broken, float("-inf"), x)
    high = tl.max(x)
    at = row * scan.parts + part
    tl.store(scan.high + at, high)
    tl.store(scan.place + at, tl.min(tl.where(x == high, column, _NOWHERE)))
    tl.store(scan.bad + at, tl.sum(broken.to(tl.int32)))
    if (flags & _DRAWN) != 0:
        block = at * blocks + tl.arange(0, blocks)
        tl.store(scan.block_sum + block, tl.sum(weigh(x, high, read_float(rows.settings, row, _TEMPERATURE)), 1))


@triton.jit
def _draw(rows, row, adjusted, high, temperature, sums, target, BLOCK: tl.constexpr):
    """Return the token at `target` of the cumulative distribution whose blocks have these sums."""
    block, before = first_above(sums, target)
    column = block * BLOCK + tl.arange(0, BLOCK)
    x = read_logits(rows, row, column, column < rows.vocab, adjusted)
    token, _ = first_above(weigh(x, high, temperature).to(tl.float64), target - before)
    return block * BLOCK + token


@triton.jit
def _choose(rows, scan, points, out, PARTS: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """Choose one row's token per program; a cut row gets its argmax."""
    row = tl.program_id(0).to(tl.int64)
    flags = tl.load(rows.settings + row * _COLUMNS + _FLAGS)
    high, token, good = read_high(scan, row, PARTS)
    if good & ((flags & (_DRAWN | _CUT)) == _DRAWN):
        temperature = read_float(rows.settings, row, _TEMPERATURE)
        sums = read_blocks(scan, row, high, temperature, PARTS, BLOCKS)
        target = tl.load(points + row) * tl.sum(sums)
        token = _draw(rows, row, flags & _ADJUSTED, high, temperature, sums, target, BLOCK).to(tl.int32)
    tl.store(out + row, tl.where(good, token, -1))


def make_scan(max_rows: int, vocab: int, device: torch.device) -> Scan:
    """Return memory for the scans of up to `max_rows` rows."""
    parts = triton.cdiv(vocab, PART)

    def empty(dtype: torch.dtype, width: int = parts) -> torch.Tensor:
        return torch.empty(max_rows, width, dtype=dtype, device=device)

    blocks = empty(torch.float32, parts * (PART // BLOCK))
    return Scan(empty(torch.float32), empty(torch.int32), empty(torch.int32), blocks, parts)


def scan_rows(rows: Rows, scan: Scan, count: int) -> None:
    """Fill `scan` for the first `count` rows."""
    _scan[(count, scan.parts)](rows, scan, PART=PART, BLOCK=BLOCK, num_warps=8)


def choose(rows: Rows, scan: Scan, points: torch.Tensor, out: torch.Tensor, count: int) -> torch.Tensor:
    """Write the tokens of `count` rows, whose scan is done, to out int32 [count or more]: -1 for a row with NaN or +inf
    or nothing else than -inf. Cut rows get their argmax. Returns out.

    points: float64 [rows], in [0, 1): where in its distribution a row is drawn
    """
    parts = triton.next_power_of_2(scan.parts)
    _choose[(count,)](rows, scan, points, out, PARTS=parts, BLOCKS=PART // BLOCK, BLOCK=BLOCK, num_warps=4)
    return out
