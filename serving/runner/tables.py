"""The block tables of running sequences on the device. A step sends the block ids that are new, whatever its context.

A sequence keeps its row of the table from step to step. Its list of blocks only grows (`serving.core.Sequence.blocks`);
a sequence that gave its blocks back has another list, and its row is written anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from serving.core import Sequence, Status
from serving.kernels.upload import Int32s


@dataclass(slots=True, eq=False)
class _Row:
    """One sequence's row: its list of blocks, how many of them are written, and the step that read it last."""

    number: int
    blocks: list[int]
    written: int
    step: int


class DeviceTables:
    """Block tables of at most `rows` sequences of one step, each of up to `max_blocks` blocks.

    host: int32 [rows + 1, max_blocks]; device: the same, once `update` has run. The last row is the padding rows': 0
    shapes: the arrays by which a step's new entries go up
    """

    def __init__(self, rows: int, max_blocks: int, device: torch.device) -> None:
        self.host: Int32s = np.zeros((rows + 1, max_blocks), np.int32)
        self.device = torch.zeros(rows + 1, max_blocks, dtype=torch.int32, device=device)
        # As many as if all sequences of a step were new. Last in the buffer, of which a step uploads the used part.
        self.shapes = {"table_entries": (rows * max_blocks, 2)}
        self._rows: dict[Sequence, _Row] = {}
        self._free = list(range(rows - 1, -1, -1))
        self._step = 0
        self._places: list[int] = []
        self._blocks: list[int] = []

    @property
    def padding(self) -> int:
        """The row of padding."""
        return len(self.host) - 1

    @property
    def new(self) -> int:
        """How many entries the next upload brings."""
        return len(self._places)

    def rows_of(self, sequences: Iterable[Sequence]) -> list[int]:
        """Return the row of each sequence of a step, in order, and note what is new in it for `fill`."""
        self._step += 1
        rows, step, out = self._rows, self._step, []
        for sequence in sequences:
            row, blocks = rows.get(sequence), sequence.blocks
            if row is None or row.blocks is not blocks:
                row = self._begin(sequence)
            row.step = step
            if row.written < len(blocks):
                self._write(row)
            out.append(row.number)
        return out

    def fill(self, entries: Int32s) -> int:
        """Write pairs of place and block id into the array of `shapes`; returns their number."""
        count = len(self._places)
        if count:
            entries[:count, 0], entries[:count, 1] = self._places, self._blocks
        return count

    def update(self, entries: torch.Tensor, count: int) -> None:
        """Launch the update of the device's table by the first `count` uploaded entries."""
        if count:
            self.device.view(-1).index_put_((entries[:count, 0],), entries[:count, 1])
            self._places, self._blocks = [], []

    def forget(self) -> None:
        """Write every row anew when it is next used: a step failed before its entries reached the device."""
        self._places, self._blocks = [], []
        for row in self._rows.values():
            row.written = 0

    def _begin(self, sequence: Sequence) -> _Row:
        """Return the row of a sequence that has none, or has other blocks than those in its row."""
        row = self._rows.get(sequence)
        if row is None:
            row = self._rows[sequence] = _Row(self._take(), sequence.blocks, 0, self._step)
        row.blocks, row.written = sequence.blocks, 0
        return row

    def _take(self) -> int:
        """Return a free row, else that of the sequence that has been in no step for longest."""
        if not self._free:
            for gone in [s for s in self._rows if s.status is Status.FINISHED]:
                self._free.append(self._rows.pop(gone).number)
        if not self._free:
            idle = min(self._rows, key=lambda s: self._rows[s].step)
            if self._rows[idle].step == self._step:
                raise ValueError(f"a step has more than {self.padding} sequences")
            self._free.append(self._rows.pop(idle).number)
        return self._free.pop()

    def _write(self, row: _Row) -> None:
        begin, end = row.written, len(row.blocks)
        fresh, first = row.blocks[begin:end], row.number * self.host.shape[1]
        self.host[row.number, begin:end] = fresh
        self._places += range(first + begin, first + end)
        self._blocks += fresh
        row.written = end
