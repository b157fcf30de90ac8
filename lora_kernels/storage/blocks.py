"""The C library's order of weights within a page, in blocks of ranks and columns (sgmv.h), and the way back to rows."""

from __future__ import annotations

import torch

# Rows of A are padded to whole 64-byte vectors of bfloat16, so that no kernel needs a tail in K.
K_ALIGN = 32
# LK_UNIT, LK_A_BLOCK and LK_B_BLOCK of sgmv.h: ranks, and columns of A and of B.
UNIT = 8
A_BLOCK = K_ALIGN
B_BLOCK = 64
# bfloat16 columns of A per block; each column of the first half lies beside one of the second.
WOVEN = 16
# Types of weights whose ranks lie in pairs in B.
PAIRED = (torch.bfloat16, torch.int8)


def unblocked_a(blocks: torch.Tensor) -> torch.Tensor:
    """Return A in blocks, [..., units, blocks, ranks, columns], as [..., all ranks, all columns]."""
    if blocks.dtype == torch.bfloat16:
        blocks = blocks.unflatten(-1, (-1, WOVEN // 2, 2)).transpose(-1, -2).flatten(-3)
    return _in_rows(blocks)


def unblocked_b(blocks: torch.Tensor) -> torch.Tensor:
    """Return B in blocks, [..., units, blocks, ranks, columns], as [..., all ranks, all columns]."""
    if blocks.dtype in PAIRED:
        pairs = blocks.flatten(-2).unflatten(-1, (UNIT // 2, B_BLOCK, 2))
        blocks = pairs.transpose(-1, -2).flatten(-3, -2)
    return _in_rows(blocks)


def place_in_a_block(column: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return where each column of A lies within its block of A_BLOCK columns."""
    inside = column % A_BLOCK
    if dtype != torch.bfloat16:
        return inside
    half = inside % WOVEN // (WOVEN // 2)
    return inside // WOVEN * WOVEN + inside % (WOVEN // 2) * 2 + half


def _in_rows(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.transpose(-3, -2).flatten(-2).flatten(-3, -2)
