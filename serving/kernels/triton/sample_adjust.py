"""Settings that change a row's logits before a token is chosen: penalties, a grammar's mask, biases."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from serving.kernels.triton.sample import COLUMNS, FREQUENCY, MASK, PART, PRESENCE, REPETITION, SLOT, Rows, read_float

# In a count, this bit says that the prompt has the token; the bits below count how often it was generated.
IN_PROMPT = 1 << 30
_BIASES = 128
_COLUMNS: tl.constexpr = tl.constexpr(COLUMNS)
_SLOT: tl.constexpr = tl.constexpr(SLOT)
_MASK: tl.constexpr = tl.constexpr(MASK)
_REPETITION: tl.constexpr = tl.constexpr(REPETITION)
_FREQUENCY: tl.constexpr = tl.constexpr(FREQUENCY)
_PRESENCE: tl.constexpr = tl.constexpr(PRESENCE)
_IN_PROMPT: tl.constexpr = tl.constexpr(IN_PROMPT)


class Changes(NamedTuple):
    """What `adjust` reads beside the settings; a row's SLOT and MASK are its rows here, or -1.

    counts: int32 [slots, vocab], see IN_PROMPT
    masks: int32 [masks, words], allowed tokens as bits: token t is bit t % 32 of word t // 32
    """

    counts: torch.Tensor
    masks: torch.Tensor
    words: int


class Biases(NamedTuple):
    """Tokens and what is added to their logits.

    rows: int32 [biased rows]; ends: int32 [biased rows], where each row's tokens end in the other two
    tokens, amounts: int32 and float32 [all]; a row's tokens are distinct
    """

    rows: torch.Tensor
    ends: torch.Tensor
    tokens: torch.Tensor
    amounts: torch.Tensor


@triton.jit
def _adjust(rows, changes, listed, PART: tl.constexpr):
    """Adjust one part of one listed row per program."""
    row, part = tl.load(listed + tl.program_id(0)).to(tl.int64), tl.program_id(1)
    column = part * PART + tl.arange(0, PART)
    inside = column < rows.vocab
    x = tl.load(rows.logits + row * rows.stride + column, mask=inside, other=float("-inf")).to(tl.float32)
    broken = (x != x) | (x == float("inf"))
    slot = tl.load(rows.settings + row * _COLUMNS + _SLOT)
    if slot >= 0:
        at = changes.counts + slot.to(tl.int64) * rows.vocab + column
        count = tl.load(at, mask=inside, other=0)
        generated = count & (_IN_PROMPT - 1)
        repetition = read_float(rows.settings, row, _REPETITION)
        x = tl.where(count != 0, tl.where(x > 0, x / repetition, x * repetition), x)
        once = tl.where(generated > 0, read_float(rows.settings, row, _PRESENCE), 0.0)
        x -= read_float(rows.settings, row, _FREQUENCY) * generated + once
    mask = tl.load(rows.settings + row * _COLUMNS + _MASK)
    if mask >= 0:
        word = tl.load(changes.masks + mask.to(tl.int64) * changes.words + column // 32, mask=inside, other=0)
        x = tl.where(((word >> (column % 32)) & 1) != 0, x, float("-inf"))
    # Logits that are not finite must be seen even where a mask hides them.
    x = tl.where(broken, float("nan"), x)
    tl.store(rows.adjusted + row * rows.width + column, x, mask=inside)


@triton.jit
def _add_biases(rows, biases, BLOCK: tl.constexpr):
    """Add one row's biases per program."""
    index = tl.program_id(0)
    row = tl.load(biases.rows + index).to(tl.int64)
    begin = tl.load(biases.ends + index - 1, mask=index > 0, other=0)
    end = tl.load(biases.ends + index)
    for start in range(begin, end, BLOCK):
        place = start + tl.arange(0, BLOCK)
        token = tl.load(biases.tokens + place, mask=place < end, other=0)
        at = rows.adjusted + row * rows.width + token
        x = tl.load(at, mask=place < end, other=0.0) + tl.load(biases.amounts + place, mask=place < end, other=0.0)
        tl.store(at, x, mask=place < end)


@triton.jit
def _count(settings, counts, vocab, listed, tokens):
    """Count one listed row's token per program; slots are distinct."""
    row = tl.load(listed + tl.program_id(0)).to(tl.int64)
    token = tl.load(tokens + row)
    slot = tl.load(settings + row * _COLUMNS + _SLOT).to(tl.int64)
    at = counts + slot * vocab + token
    tl.store(at, tl.load(at, mask=token >= 0, other=0) + 1, mask=token >= 0)


def adjust(rows: Rows, changes: Changes, listed: torch.Tensor, biases: Biases | None) -> None:
    """Write the adjusted logits of the rows in `listed`, int32 [adjusted rows], to `rows.adjusted`. NaN and +inf become
    NaN, whatever hides them."""
    _adjust[(len(listed), triton.cdiv(rows.vocab, PART))](rows, changes, listed, PART=PART, num_warps=8)
    if biases is not None:
        _add_biases[(len(biases.rows),)](rows, biases, BLOCK=_BIASES, num_warps=4)


def count_tokens(settings: torch.Tensor, counts: torch.Tensor, listed: torch.Tensor, tokens: torch.Tensor) -> None:
    """Add the token of each row in `listed` to its slot of counts [slots, vocab]; -1 is not counted."""
    _count[(len(listed),)](settings, counts, counts.shape[1], listed, tokens, num_warps=1)
