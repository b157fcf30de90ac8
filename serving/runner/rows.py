"""From a step plan to the rows of a GPU step: single tokens first, then chunks, then padding, in a fixed layout.

The work does not grow with the context of a sequence: block tables stay on the device (`tables.DeviceTables`).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from serving.core import Sequence as Running
from serving.kernels.upload import Int32s
from serving.runner.packing import IN_FLIGHT, Wanted
from serving.runner.tables import DeviceTables
from serving.steps import Chunk


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackedRows(Wanted):
    """One step's rows, chunk after chunk.

    chunks: single tokens first, `tokens` of them; `sampling` has this order, which need not be the plan's
    token_ids: [rows]; IN_FLIGHT where the token is not known on the host
    starts, counts, first: int32 [chunks]: the position of each chunk's first token, its rows, its first row
    """

    chunks: Sequence[Chunk]
    tokens: int
    token_ids: list[int]
    starts: Int32s
    counts: Int32s
    first: Int32s

    @property
    def rows(self) -> int:
        return len(self.token_ids)

    @property
    def sampled(self) -> tuple[Running, ...]:
        """The sequence of each sampled row: once for its last token, and once for each of its draft."""
        if not any(self.drafts):
            return self.sampling
        return tuple(s for s, draft in zip(self.sampling, self.drafts, strict=True) for _ in range(1 + len(draft)))

    @property
    def ends(self) -> list[int]:
        """How many tokens the sequence of each sampled row has before the one that is sampled, those in flight and of
        the draft included."""
        sampling = (chunk for chunk in self.chunks if chunk.samples and not chunk.sequence.request.embed)
        return [end for chunk in sampling for end in range(chunk.known_end, chunk.end + 1)]


def pack_rows(chunks: Sequence[Chunk]) -> PackedRows:
    """Lay out the chunks of a plan, at least one."""
    longer = [chunk for chunk in chunks if chunk.count != 1]
    singles = [chunk for chunk in chunks if chunk.count == 1] if longer else chunks
    ordered = [*singles, *longer]
    token_ids: list[int] = []
    sample_rows: list[int] = []
    embed_rows: list[int] = []
    score_rows: list[int] = []
    sampling: list[Running] = []
    embedding: list[Running] = []
    scoring: list[tuple[Running, range]] = []
    drafts: list[tuple[int, ...]] = []
    for chunk in ordered:
        sequence, start, count = chunk.sequence, chunk.start, chunk.count
        tokens, end, request = sequence.tokens, start + count, sequence.request
        known = len(tokens)
        if count == 1:
            token_ids.append(tokens[start] if start < known else IN_FLIGHT)
        else:
            token_ids += tokens[start : chunk.known_end]
            token_ids += [IN_FLIGHT] * (chunk.known_end - known)
            token_ids += chunk.draft
        if end >= known and request.embed:
            embed_rows.append(len(token_ids) - 1)
            embedding.append(sequence)
        elif end >= known:
            sample_rows.extend(range(len(token_ids) - 1 - len(chunk.draft), len(token_ids)))
            sampling.append(sequence)
            drafts.append(chunk.draft)
        if request.sampling.prompt_logprobs is not None and (positions := sequence.unscored(start, end)):
            score_rows.extend(len(token_ids) - end + position for position in positions)
            scoring.append((sequence, positions))
    counts = np.fromiter([chunk.count for chunk in ordered], np.int32, len(ordered))
    return PackedRows(
        sample_rows=array("i", sample_rows + embed_rows + score_rows),
        sampling=tuple(sampling),
        embedding=tuple(embedding),
        scoring=tuple(scoring),
        drafts=tuple(drafts),
        chunks=ordered,
        tokens=len(singles),
        token_ids=token_ids,
        starts=np.fromiter([chunk.start for chunk in ordered], np.int32, len(ordered)),
        counts=counts,
        first=counts.cumsum(dtype=np.int32) - counts,
    )


class RowLayout:
    """Writes packed rows into the arrays that a forward pass reads.

    tile: query positions of one unit of prefill attention
    shapes: the arrays, int32; `rows` and `units` of them are read

    token_ids, positions, slots: [rows]; slots index KV by block · block_size + offset
    sources: [rows], the place of the row's token among the samples of the step before, -1 where the host knows it
    row_tables: [sequences], the block table of each single-token row
    units: [tiles, 4], tiles of the chunks: first row, query positions, position of the first, block table
    counts: [8]: single-token rows, units, rows; what a recorded graph reads its work from
    """

    def __init__(self, max_rows: int, max_sequences: int, block_size: int, tile: int) -> None:
        self._block_size, self._tile, self._max_sequences = block_size, tile, max_sequences
        self.shapes: dict[str, tuple[int, ...]] = {
            "counts": (8,),
            **dict.fromkeys(("token_ids", "sources", "positions", "slots"), (max_rows,)),
            "row_tables": (max_rows,),
            "units": (self.most_units(max_rows), 4),
        }

    def most_units(self, rows: int) -> int:
        """Return the most units of a step of `rows` rows: each chunk has two rows at least, and one partial tile."""
        return max(1, rows // self._tile + min(self._max_sequences, rows // 2))

    def fill(
        self, a: Mapping[str, Int32s], step: PackedRows, sources: Sequence[int], tables: DeviceTables, rows: int
    ) -> int:
        """Write a step, padded to `rows` rows; returns the number of units.

        A padding row is a token at position 0 of the padding block, in no unit. sources: for rows in flight, in order
        """
        used, size, singles = step.rows, self._block_size, step.tokens
        table_rows = np.array(tables.rows_of([chunk.sequence for chunk in step.chunks]), np.int32)
        ids = np.array(step.token_ids, np.int32)
        if singles == len(step.chunks):
            positions, owner = step.starts, table_rows
        else:
            positions = np.arange(used, dtype=np.int32) + (step.starts - step.first).repeat(step.counts)
            owner = table_rows.repeat(step.counts)
        a["token_ids"][:used] = ids
        a["sources"][:used] = -1
        if len(sources):
            a["sources"][np.flatnonzero(ids == IN_FLIGHT)] = sources
        a["positions"][:used] = positions
        a["slots"][:used] = tables.host[owner, positions // size] * np.int32(size) + positions % size
        a["row_tables"][:used] = owner
        self.fill_padding(a, tables.padding, rows, used)
        units = self._units(a["units"], step, table_rows) if singles < len(step.chunks) else 0
        a["counts"][:3] = singles, units, used
        return units

    def fill_padding(self, a: Mapping[str, Int32s], table: int, rows: int, used: int = 0) -> None:
        """Write padding from row `used` to row `rows`; `table` is the block table of padding."""
        if used < rows:
            padding = {"token_ids": 0, "sources": -1, "positions": 0, "slots": 0, "row_tables": table}
            for name, value in padding.items():
                a[name][used:rows] = value

    def _units(self, units: Int32s, step: PackedRows, table_rows: Int32s) -> int:
        """Write the tiles of all chunks, in order; returns their number."""
        longer, tile = slice(step.tokens, None), self._tile
        counts = step.counts[longer]
        tiles = -(-counts // tile)
        total = int(tiles.sum())
        offset = (np.arange(total, dtype=np.int32) - (tiles.cumsum(dtype=np.int32) - tiles).repeat(tiles)) * tile
        out = units[:total]
        out[:, 0] = step.first[longer].repeat(tiles) + offset
        out[:, 1] = np.minimum(counts.repeat(tiles) - offset, tile)
        out[:, 2] = step.starts[longer].repeat(tiles) + offset
        out[:, 3] = table_rows[longer].repeat(tiles)
        return total
