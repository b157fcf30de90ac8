"""One step's batch as kernels read it: rows listed by slot, in one packed int32 buffer; tokens are never moved."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

# Rows of one GPU tile in decode: the smallest N of a tensor-core instruction pair, so that a lone row wastes little.
TILE_ROWS = 16
# And in prefill: weights are read from the cache once per tile, so that their traffic stays below that of x and y
# (a page of 16 ranks is as many bytes as 16 rows of x).
PREFILL_TILE_ROWS = 64
# More rows than any decode step has. Tile sizes do not change a result's bits: each row is a column of its own in the
# tensor-core tile, summed in one order.
MAX_DECODE_ROWS = 512


def tile_rows_for(rows: int) -> int:
    """Return the rows of one GPU tile for a batch, or for static buffers, of `rows` rows."""
    return TILE_ROWS if rows <= MAX_DECODE_ROWS else PREFILL_TILE_ROWS


@dataclass(frozen=True)
class Segment:
    """All rows of one distinct adapter: `runs` are (first row, number of rows), one per request, ascending."""

    slot: int
    rows: int
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """The rows of one step and the adapter of each, the same for every site and layer.

    rows: T, rows of x and y
    segments: the distinct adapters, ascending by slot (rows with slot -1 are in none)
    max_pages: the longest page list among them
    row_order: int32 [rows with an adapter], row ids grouped by segment, each segment's rows ascending
    segment_starts: int32 [segments + 1], where each segment begins in row_order
    segment_slots: int32 [segments]
    row_slots: int32 [rows], the slot of each row or -1
    tiles: int32 [3 · capacity], (first in row_order, rows, slot) of at most tile_rows rows of one adapter each
    units: int32 [4 · capacity], (first in row_order, rows, slot, place in its page table): the pages of each tile,
        empty unless the pool's backend is one that reads them
    counts: int32 [8]: rows, rows with an adapter, segments, tiles, units; what a captured graph reads its work from
    tile_rows: rows of a full tile
    """

    rows: int
    segments: tuple[Segment, ...]
    max_pages: int
    row_order: torch.Tensor
    segment_starts: torch.Tensor
    segment_slots: torch.Tensor
    row_slots: torch.Tensor
    tiles: torch.Tensor
    units: torch.Tensor
    counts: torch.Tensor
    tile_rows: int
    # Whatever a backend derives once per step; filled by the backend alone.
    cache: dict[str, object] = field(default_factory=dict)


class Layout:
    """Where each array begins in the packed int32 buffer, given its capacities.

    counts[8] (rows, rows with an adapter, segments, tiles, units, three spare) | segment_slots | segment_starts |
    row_order | row_slots | tiles | units
    """

    def __init__(self, max_rows: int, max_segments: int, max_pages: int) -> None:
        self.tile_rows = tile_rows_for(max_rows)
        self.segment_slots = 8
        self.segment_starts = self.segment_slots + max_segments
        self.row_order = self.segment_starts + max_segments + 1
        self.row_slots = self.row_order + max_rows
        self.tiles = self.row_slots + max_rows
        # Every segment begins a tile, and every tile_rows rows fill one.
        max_tiles = max_segments + max_rows // self.tile_rows
        self.units = self.tiles + 3 * max_tiles
        self.size = self.units + 4 * max_tiles * max_pages

    def pack(self, rows: int, segments: Sequence[Segment], row_slots: array[int], pages: Sequence[int]) -> torch.Tensor:
        """Return the buffer on the host up to its last used entry; unused entries before it are 0.

        `pages[i]` is the number of pages of segment i, 0 where the backend needs no units.
        """
        starts = [0]
        row_order = array("i")
        tiles = array("i")
        units = array("i")
        for segment, count in zip(segments, pages, strict=True):
            for offset in range(0, segment.rows, self.tile_rows):
                tile = (starts[-1] + offset, min(self.tile_rows, segment.rows - offset), segment.slot)
                tiles.extend(tile)
                for place in range(count):
                    units.extend((*tile, place))
            starts.append(starts[-1] + segment.rows)
            for first, length in segment.runs:
                row_order.extend(range(first, first + length))
        packed = array("i", bytes(4 * (self.units + len(units))))
        packed[0:5] = array("i", (rows, starts[-1], len(segments), len(tiles) // 3, len(units) // 4))
        packed[self.segment_slots : self.segment_slots + len(segments)] = array("i", [s.slot for s in segments])
        packed[self.segment_starts : self.segment_starts + len(starts)] = array("i", starts)
        packed[self.row_order : self.row_order + len(row_order)] = row_order
        packed[self.row_slots : self.row_slots + rows] = row_slots
        packed[self.tiles : self.tiles + len(tiles)] = tiles
        packed[self.units :] = units
        return torch.frombuffer(packed, dtype=torch.int32)

    def views(self, packed: torch.Tensor, rows: int, adapted: int, segments: int) -> dict[str, Any]:
        """Return the arrays of a batch as views of the packed buffer, by their names in `Batch`."""
        return {
            "row_order": packed[self.row_order : self.row_order + adapted],
            "segment_starts": packed[self.segment_starts : self.segment_starts + segments + 1],
            "segment_slots": packed[self.segment_slots : self.segment_slots + segments],
            "row_slots": packed[self.row_slots : self.row_slots + rows],
            "tiles": packed[self.tiles : self.units],
            "units": packed[self.units :],
            "counts": packed[: self.segment_slots],
        }


class MetadataBuffers:
    """Static device memory for metadata, so that a captured CUDA graph finds each step's batch at the same addresses.

    `packed` is int32 and filled by one copy per step. `max_pages` bounds the pages of one adapter (the pool's
    `spec.max_pages` is always enough; the default is that of 256 ranks).
    """

    def __init__(
        self, max_rows: int, max_segments: int, device: torch.device | str = "cpu", *, max_pages: int = 16
    ) -> None:
        self.max_rows = max_rows
        self.max_segments = max_segments
        self.max_pages = max_pages
        self.packed = torch.zeros(Layout(max_rows, max_segments, max_pages).size, dtype=torch.int32, device=device)
