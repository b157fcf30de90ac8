"""The rows of one step and the KV blocks that each may read, as `PagedKV` takes them."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class PrefillChunk:
    """Rows [row, row + count) of the step are tokens [start, start + count) of one sequence with these blocks."""

    row: int
    count: int
    start: int
    blocks: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class StepInputs:
    """One step's rows on the device. The first `decodes` rows are single tokens, then come the chunks' rows.

    token_ids, positions, slots: int64 [rows]; slots index KV by block · block_size + offset
    block_tables: int64 [decodes, blocks], padded with block 0; mask: bool [decodes, 1, 1, blocks · block_size]
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    decodes: int
    block_tables: torch.Tensor
    mask: torch.Tensor
    chunks: tuple[PrefillChunk, ...]
