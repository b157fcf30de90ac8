"""From a step plan to flat arrays, for any device: rows are tokens, a chunk's rows lie side by side, in plan order."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from serving.core import Sequence as Running
from serving.steps import Chunk

Int32s = npt.NDArray[np.int32]

# Stands for a token that the step before this one has sampled and nobody has read yet.
IN_FLIGHT = -1


@dataclass(frozen=True, slots=True, eq=False)
class PackedStep:
    """One step's work. All arrays are int32.

    token_ids: [rows]; IN_FLIGHT where the token is not known on the host
    chunk_rows: [chunks + 1], the first row of each chunk and the number of rows
    chunk_starts: [chunks], the position of each chunk's first token
    chunk_tables: [chunks + 1], where each chunk's block ids begin in `blocks`, and where they end
    blocks: the blocks that hold each chunk's sequence up to the chunk's end
    sample_rows: the rows whose hidden state is wanted: first of `sampling`, then of `embedding`
    """

    token_ids: Int32s
    chunk_rows: Int32s
    chunk_starts: Int32s
    chunk_tables: Int32s
    blocks: Int32s
    sample_rows: Int32s
    sampling: tuple[Running, ...]
    embedding: tuple[Running, ...]

    @property
    def rows(self) -> int:
        return len(self.token_ids)

    def positions(self) -> Int32s:
        """[rows]: each token's place in its sequence."""
        counts = np.diff(self.chunk_rows)
        return np.arange(self.rows, dtype=np.int32) + np.repeat(self.chunk_starts - self.chunk_rows[:-1], counts)

    def slots(self, block_size: int) -> Int32s:
        """[rows]: where each token's KV goes, as block · block_size + offset."""
        positions = self.positions()
        tables = np.repeat(self.chunk_tables[:-1], np.diff(self.chunk_rows))
        return self.blocks[tables + positions // block_size] * np.int32(block_size) + positions % block_size


def pack_step(chunks: Sequence[Chunk], block_size: int) -> PackedStep:
    """The chunks of a plan, in their order; there is at least one."""
    tokens, rows, starts = array("i"), array("i", (0,)), array("i")
    tables, blocks = array("i", (0,)), array("i")
    sample_rows, embed_rows = array("i"), array("i")
    sampling: list[Running] = []
    embedding: list[Running] = []
    for chunk in chunks:
        sequence, start, end = chunk.sequence, chunk.start, chunk.start + chunk.count
        tokens.extend(sequence.tokens[start:end])
        rows.append(rows[-1] + chunk.count)
        if len(tokens) < rows[-1]:
            tokens.extend([IN_FLIGHT] * (rows[-1] - len(tokens)))
        starts.append(start)
        blocks.extend(sequence.blocks[: -(-end // block_size)])
        tables.append(len(blocks))
        if chunk.samples:
            (embed_rows if sequence.request.embed else sample_rows).append(rows[-1] - 1)
            (embedding if sequence.request.embed else sampling).append(sequence)
    sample_rows.extend(embed_rows)
    return PackedStep(
        token_ids=_int32s(tokens),
        chunk_rows=_int32s(rows),
        chunk_starts=_int32s(starts),
        chunk_tables=_int32s(tables),
        blocks=_int32s(blocks),
        sample_rows=_int32s(sample_rows),
        sampling=tuple(sampling),
        embedding=tuple(embedding),
    )


def _int32s(values: array[int]) -> Int32s:
    """The same memory; numpy refuses to look at none."""
    return np.frombuffer(values, np.int32) if values else np.zeros(0, np.int32)
