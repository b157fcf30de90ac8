"""One step's computation as arrays: what a forward pass needs of a plan, the same for every rank of a replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from serving.kernels.upload import Int32s
from serving.kv.inputs import PrefillChunk, StepInputs
from serving.runner.packing import PackedStep
from serving.steps import StepPlan


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepWork:
    """The rows of one step, int32: single tokens first, then chunks of prompts.

    token_ids: [rows]
    chunk_rows: [chunks + 1], the first row of each chunk and the number of rows
    chunk_starts: [chunks], the position of each chunk's first token
    chunk_tables: [chunks + 1], where each chunk's block ids begin in `blocks`, and where they end
    blocks: the blocks that hold each chunk's sequence up to the chunk's end
    slots: [chunks], the adapter slot of each chunk, -1 for the base model
    copies: [copies, 2], KV blocks to copy before anything else, in order
    stale: KV blocks to zero after the copies
    """

    token_ids: Int32s
    chunk_rows: Int32s
    chunk_starts: Int32s
    chunk_tables: Int32s
    blocks: Int32s
    slots: Int32s
    copies: Int32s
    stale: Int32s

    @classmethod
    def of(cls, plan: StepPlan, step: PackedStep, slots: Sequence[int]) -> StepWork:
        """Return the work of a plan whose chunks were packed as `step`, in the order of `slots`."""
        copied = {target for _, target in plan.copies}
        return cls(
            token_ids=np.array(step.token_ids, np.int32),
            chunk_rows=np.array(step.chunk_rows, np.int32),
            chunk_starts=np.array(step.chunk_starts, np.int32),
            chunk_tables=np.array(step.chunk_tables, np.int32),
            blocks=np.array(step.blocks, np.int32),
            slots=np.array(slots, np.int32),
            copies=np.array(plan.copies, np.int32).reshape(-1, 2),
            stale=np.array([block for block in plan.fresh_blocks if block not in copied], np.int32),
        )

    @property
    def counts(self) -> Int32s:
        """Return the rows of each chunk."""
        return self.chunk_rows[1:] - self.chunk_rows[:-1]

    def inputs(self, block_size: int, device: torch.device) -> StepInputs:
        """Return the rows as `serving.kv.paged.PagedKV` takes them."""
        counts, tables = self.counts, self.chunk_tables
        owner = np.arange(len(counts)).repeat(counts)
        positions = np.arange(len(owner)) - self.chunk_rows[owner] + self.chunk_starts[owner]
        blocks = self.blocks[tables[owner] + positions // block_size].astype(np.int64)
        decodes = int((counts == 1).sum())
        widths = tables[1:] - tables[:-1]
        width = int(widths[:decodes].max(initial=0))
        padded = np.zeros((decodes, width), np.int64)
        for row in range(decodes):
            padded[row, : widths[row]] = self.blocks[tables[row] : tables[row + 1]]
        seen = np.arange(width * block_size)[None] < self.chunk_starts[:decodes, None] + 1

        def chunk(index: int) -> PrefillChunk:
            used = torch.from_numpy(self.blocks[tables[index] : tables[index + 1]].astype(np.int64)).to(device)
            return PrefillChunk(int(self.chunk_rows[index]), int(counts[index]), int(self.chunk_starts[index]), used)

        return StepInputs(
            token_ids=torch.from_numpy(self.token_ids.astype(np.int64)).to(device),
            positions=torch.from_numpy(positions).to(device),
            slots=torch.from_numpy(blocks * block_size + positions % block_size).to(device),
            decodes=decodes,
            block_tables=torch.from_numpy(padded).to(device),
            mask=torch.from_numpy(seen).to(device)[:, None, None, :],
            chunks=tuple(chunk(index) for index in range(decodes, len(counts))),
        )
