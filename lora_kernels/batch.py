"""One step's batch as kernels read it: rows listed by slot, in one packed int32 buffer; tokens are never moved."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lora_kernels.upload import PinnedUpload

Int32s = npt.NDArray[np.int32]

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


class Segment(NamedTuple):
    """All rows of one distinct adapter.

    first: the first of its rows where they are adjacent, else -1
    """

    slot: int
    rows: int
    first: int


@dataclass(frozen=True, eq=False)
class Grouped:
    """The rows of a batch by slot, on the host: int32 arrays, as `Batch` describes them.

    segment_rows: rows of each segment
    """

    row_slots: Int32s
    row_order: Int32s
    segment_slots: Int32s
    segment_starts: Int32s
    segment_rows: Int32s

    @classmethod
    def of(cls, slots: Int32s, lengths: Int32s) -> Grouped:
        """Group rows that are laid out request after request; slots -1 and lengths 0 are in no segment."""
        first_row = lengths.cumsum(dtype=np.int32) - lengths
        order = slots.argsort(kind="stable")
        order = order[(slots[order] >= 0) & (lengths[order] > 0)]
        by_slot, rows = slots[order], lengths[order]
        owner, place = _spread(rows)
        # Where segments begin, among the requests and then among the rows.
        new = np.ones(len(order), np.bool_)
        np.not_equal(by_slot[1:], by_slot[:-1], out=new[1:])
        ends = rows.cumsum(dtype=np.int32)
        starts = np.zeros(int(new.sum()) + 1, np.int32)
        starts[:-1], starts[-1:] = (ends - rows)[new], ends[-1:] if len(ends) else 0
        return cls(
            row_slots=slots.repeat(lengths),
            row_order=first_row[order][owner] + place,
            segment_slots=by_slot[new],
            segment_starts=starts,
            segment_rows=starts[1:] - starts[:-1],
        )

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments one by one."""
        first = self.row_order[self.segment_starts[:-1]]
        adjacent = self.row_order[self.segment_starts[1:] - 1] - first == self.segment_rows - 1
        columns = self.segment_slots, self.segment_rows, np.where(adjacent, first, -1)
        return tuple(map(Segment._make, zip(*(column.tolist() for column in columns), strict=True)))

    def tiles(self, tile_rows: int) -> tuple[Int32s, Int32s]:
        """Return the tiles, int32 [tiles, 3], and the segment of each."""
        segment, place = _spread((self.segment_rows + (tile_rows - 1)) // tile_rows)
        offset = place * tile_rows
        tiles = np.empty((len(segment), 3), np.int32)
        tiles[:, 0] = self.segment_starts[segment] + offset
        np.minimum(self.segment_rows[segment] - offset, tile_rows, out=tiles[:, 1])
        tiles[:, 2] = self.segment_slots[segment]
        return tiles, segment


def _spread(counts: Int32s) -> tuple[Int32s, Int32s]:
    """Return, for counts[i] entries of each i in turn, their i and their places 0, 1, ... within it."""
    ends = counts.cumsum(dtype=np.int32)
    places = np.arange(ends[-1] if len(ends) else 0, dtype=np.int32)
    if len(places) == len(counts) and counts.all():  # one of each, as in decode
        return places, np.zeros(len(places), np.int32)
    owner = np.arange(len(counts), dtype=np.int32).repeat(counts)
    return owner, places - (ends - counts)[owner]


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """The rows of one step and the adapter of each, the same for every site and layer.

    rows: T, rows of x and y
    has_adapters: whether any row has one
    grouped: the rows by slot, on the host
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
    has_adapters: bool
    grouped: Grouped
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

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The distinct adapters, ascending by slot (rows with slot -1 are in none). Triton's kernels never ask."""
        return self.grouped.segments()


class Layout:
    """Where each array begins in the packed int32 buffer, given its capacities.

    counts[8] (rows, rows with an adapter, segments, tiles, units, three spare) | segment_slots | segment_starts |
    row_order | row_slots | tiles | units
    """

    def __init__(self, max_rows: int, max_segments: int, max_pages: int, tile_rows: int) -> None:
        self.tile_rows = tile_rows
        self.segment_slots = 8
        # Every array begins at 16 bytes, whatever the batch: else Triton compiles another variant for each alignment.
        self.segment_starts = self.segment_slots + _aligned(max_segments)
        self.row_order = self.segment_starts + _aligned(max_segments + 1)
        self.row_slots = self.row_order + _aligned(max_rows)
        self.tiles = self.row_slots + _aligned(max_rows)
        # Every segment begins a tile, and every tile_rows rows fill one.
        max_tiles = max_segments + max_rows // self.tile_rows
        self.tiles_end = self.tiles + 3 * max_tiles
        self.units = self.tiles + _aligned(3 * max_tiles)
        self.size = self.units + 4 * max_tiles * max_pages

    def pack(self, grouped: Grouped, pages: Int32s, into: Int32s) -> int:
        """Write a batch into a buffer on the host; returns where its used entries end. Others keep what they hold.

        `pages[i]` is the number of pages of segment i, 0 where the backend needs no units.
        """
        tiles, segment = grouped.tiles(self.tile_rows)
        tile, place = _spread(pages[segment])
        end = self.units + 4 * len(tile)
        units = into[self.units : end].reshape(-1, 4)
        units[:, :3], units[:, 3] = tiles[tile], place
        into[:5] = len(grouped.row_slots), len(grouped.row_order), len(grouped.segment_slots), len(tiles), len(tile)
        for begin, values in (
            (self.segment_slots, grouped.segment_slots),
            (self.segment_starts, grouped.segment_starts),
            (self.row_order, grouped.row_order),
            (self.row_slots, grouped.row_slots),
            (self.tiles, tiles.reshape(-1)),
        ):
            into[begin : begin + len(values)] = values
        return end

    def views(self, packed: torch.Tensor, rows: int, adapted: int, segments: int) -> dict[str, Any]:
        """Return the arrays of a batch as views of the packed buffer, by their names in `Batch`."""
        return {
            "row_order": packed[self.row_order : self.row_order + adapted],
            "segment_starts": packed[self.segment_starts : self.segment_starts + segments + 1],
            "segment_slots": packed[self.segment_slots : self.segment_slots + segments],
            "row_slots": packed[self.row_slots : self.row_slots + rows],
            "tiles": packed[self.tiles : self.tiles_end],
            "units": packed[self.units :],
            "counts": packed[: self.segment_slots],
        }


def _aligned(count: int) -> int:
    """Return the int32 elements, at least `count`, that end at a multiple of 16 bytes."""
    return -(-count // 4) * 4


class MetadataBuffers:
    """Static device memory for metadata, so that a captured CUDA graph finds each step's batch at the same addresses.

    `packed` is int32 and filled by one copy per step, from pinned memory with two sides: the host packs one while the
    device reads the other, and waits only for the copy of the step before the last.

    max_pages: bounds the pages of one adapter (the pool's `spec.max_pages` is always enough; the default is that of 256
        ranks)
    tile_rows: rows of a GPU tile, 16 or 64; None: what suits `max_rows`. Buffers of decode graphs name 16, so that they
        are as fast beside a prefill of 8,192 rows.
    """

    def __init__(
        self,
        max_rows: int,
        max_segments: int,
        device: torch.device | str = "cpu",
        *,
        max_pages: int = 16,
        tile_rows: int | None = None,
    ) -> None:
        self.max_rows = max_rows
        self.max_segments = max_segments
        self.max_pages = max_pages
        self.tile_rows = tile_rows or tile_rows_for(max_rows)
        self.layout = Layout(max_rows, max_segments, max_pages, self.tile_rows)
        # The request that was built last and the batch made of it, for `BatchMetadata.build` alone.
        self.holds: tuple[object, Any] | None = None
        self._upload = PinnedUpload(self.layout.size, torch.device(device))
        self.packed = self._upload.device_memory

    def current_stream(self) -> object:
        """Return the stream that the next copy would be queued on, None on a CPU."""
        return self._upload.current_stream()

    def fill(self, grouped: Grouped, pages: Int32s) -> None:
        """Pack a batch that fits and start its copy. Raises BackendError under graph capture."""
        self.holds = None
        self._upload.send(self.layout.pack(grouped, pages, self._upload.begin()))
