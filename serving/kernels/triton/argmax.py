"""The likeliest token of each row, with a check for NaN and infinity, while the logits stay on the device."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Logits per step: 8192 float32 are 32 KB, in registers of eight warps.
BLOCK = 8192


@triton.jit
def _argmax(logits, stride, vocab, out, BLOCK: tl.constexpr):
    """Find one row's argmax per program; the first of equals wins; -1 if a value is NaN or the largest is infinite."""
    row = tl.program_id(0).to(tl.int64)
    best = float("-inf")
    place = 0
    bad = 0
    for start in range(0, vocab, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(logits + row * stride + column, mask=column < vocab, other=float("-inf")).to(tl.float32)
        bad += tl.sum((x != x).to(tl.int32))
        x = tl.where(x != x, float("-inf"), x)
        high = tl.max(x)
        if high > best:
            best = high
            place = start + tl.argmax(x, 0)
    good = (bad == 0) & (best != float("inf")) & (best != float("-inf"))
    tl.store(out + row, tl.where(good, place, -1))


def argmax(logits: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Write the argmax of logits [rows, vocab], whose rows may be strided, to out int32 [rows]. Returns out."""
    rows, vocab = logits.shape
    _argmax[(rows,)](logits, logits.stride(0), vocab, out, BLOCK=min(BLOCK, triton.next_power_of_2(vocab)), num_warps=8)
    return out
