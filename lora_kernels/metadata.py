"""Which rows of a batch belong to which slot: requests are sorted by slot, tokens are never moved."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from lora_kernels.errors import ShapeError, SlotError
from lora_kernels.pool import AdapterPool

# Rows of one GPU tile in decode: the smallest N of a tensor-core instruction pair, so that a lone row wastes little.
TILE_ROWS = 16
# And in prefill: weights are read from the cache once per tile, so that their traffic stays below that of x and y
# (a page of 16 ranks is as many bytes as 16 rows of x).
PREFILL_TILE_ROWS = 64
# More rows than any decode step has. Tile sizes do not change a result's bits: each row is a column of its own in the
# tensor-core tile, summed in one order.
MAX_DECODE_ROWS = 512


def tile_rows_for(rows: int) -> int:
    """Rows of one GPU tile for a batch, or for static buffers, of `rows` rows."""
    return TILE_ROWS if rows <= MAX_DECODE_ROWS else PREFILL_TILE_ROWS


@dataclass(frozen=True)
class Segment:
    """All rows of one distinct adapter: `runs` are (first row, number of rows), one per request, ascending."""

    slot: int
    rows: int
    runs: tuple[tuple[int, int], ...]


class _Layout:
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

    def pack(
        self, rows: int, segments: tuple[Segment, ...], row_slots: array[int], pages: Sequence[int]
    ) -> torch.Tensor:
        """The buffer on the host up to its last used entry; unused entries before it are 0.

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


class MetadataBuffers:
    """Static device memory for metadata, so that a captured CUDA graph finds each step's batch at the same addresses.

    `packed` is int32 and filled by one copy a step. `max_pages` bounds the pages of one adapter (the pool's
    `spec.max_pages` is always enough; the default is that of 256 ranks).
    """

    def __init__(
        self, max_rows: int, max_segments: int, device: torch.device | str = "cpu", *, max_pages: int = 16
    ) -> None:
        self.max_rows = max_rows
        self.max_segments = max_segments
        self.max_pages = max_pages
        self.packed = torch.zeros(_Layout(max_rows, max_segments, max_pages).size, dtype=torch.int32, device=device)


@dataclass(frozen=True, eq=False)
class BatchMetadata:
    """One step's batch, good for every site and layer of it. Build it once a step; it is stale after load or evict,
    until then good for any step of the same rows.

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

    pool: AdapterPool
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
    # Whatever a backend derives once a step; filled by the backend alone.
    cache: dict[str, object] = field(default_factory=dict)
    _changes: int = 0

    @property
    def is_stale(self) -> bool:
        """Whether the pool has loaded or evicted anything since."""
        return self._changes != self.pool.tables.changes

    @classmethod
    def build(
        cls,
        slots_per_request: Sequence[int],
        lens_per_request: Sequence[int],
        pool: AdapterPool,
        out: MetadataBuffers | None = None,
    ) -> BatchMetadata:
        """Describe a batch whose rows are laid out request after request.

        `slots_per_request[i]` is -1 for the bare base; `lens_per_request[i]` is the request's number of rows (0 is
        fine). With `out`, the device tensors are views of its static memory, and the current stream waits for adapters
        of the batch that are still being copied: a graph replay cannot.
        Raises ShapeError (lengths) or SlotError (slot out of range or empty).
        """
        if len(slots_per_request) != len(lens_per_request):
            raise ShapeError(f"{len(slots_per_request)} slots for {len(lens_per_request)} lengths")
        runs: dict[int, list[tuple[int, int]]] = {}
        row_slots = array("i")
        rows = 0
        for slot, length in zip(slots_per_request, lens_per_request, strict=True):
            if length < 0:
                raise ShapeError(f"negative request length {length}")
            if slot != -1 and not pool.is_loaded(slot):
                raise SlotError(f"slot {slot} is empty")
            if length:
                row_slots.extend((slot,) * length)
                if slot != -1:
                    runs.setdefault(slot, []).append((rows, length))
                rows += length
        segments = tuple(
            Segment(slot, sum(length for _, length in runs[slot]), tuple(runs[slot])) for slot in sorted(runs)
        )
        max_rows, max_segments = (rows, len(segments)) if out is None else (out.max_rows, out.max_segments)
        if rows > max_rows or len(segments) > max_segments:
            raise ShapeError(
                f"{rows} rows and {len(segments)} adapters do not fit buffers for {max_rows} and {max_segments}"
            )
        pages = [len(pool.slot_pages(segment.slot)) for segment in segments]
        most_pages = max(pages, default=0)
        max_pages = most_pages if out is None else out.max_pages
        if most_pages > max_pages:
            raise ShapeError(f"an adapter of {most_pages} pages does not fit buffers for {max_pages}")
        layout = _Layout(max_rows, max_segments, max_pages)
        if out is not None:
            pool.settle(segment.slot for segment in segments)
        host = layout.pack(rows, segments, row_slots, pages if pool.backend.NEEDS_UNITS else [0] * len(segments))
        if out is None:
            packed = host.to(pool.device)
        else:
            packed = out.packed
            packed[: len(host)].copy_(host, non_blocking=True)
        adapted = sum(segment.rows for segment in segments)
        return cls(
            pool=pool,
            rows=rows,
            segments=segments,
            max_pages=most_pages,
            row_order=packed[layout.row_order : layout.row_order + adapted],
            segment_starts=packed[layout.segment_starts : layout.segment_starts + len(segments) + 1],
            segment_slots=packed[layout.segment_slots : layout.segment_slots + len(segments)],
            row_slots=packed[layout.row_slots : layout.row_slots + rows],
            tiles=packed[layout.tiles : layout.units],
            units=packed[layout.units :],
            counts=packed[: layout.segment_slots],
            tile_rows=layout.tile_rows,
            _changes=pool.tables.changes,
        )

    def wait_for_layer(self, layer: int) -> None:
        """Make the current stream wait for one layer of adapters that are still being copied; free when none is."""
        if not self.pool.is_settled:
            self.pool.wait_for_layer(layer, [segment.slot for segment in self.segments])

    def pick(self, rows: Sequence[int], out: MetadataBuffers | None = None) -> BatchMetadata:
        """Metadata of some of the batch's rows, in the order given: those that logits are computed for.

        Raises ShapeError when a row is out of range.
        """
        if rows and not 0 <= min(rows) <= max(rows) < self.rows:
            raise ShapeError(f"rows {min(rows)}..{max(rows)} are not all within the batch's {self.rows}")
        slots = self.slots_by_row()
        return BatchMetadata.build([slots[row] for row in rows], [1] * len(rows), self.pool, out)

    def slots_by_row(self) -> list[int]:
        """The slot of each row, -1 for the base, on the host."""
        slots = [-1] * self.rows
        for segment in self.segments:
            for first, length in segment.runs:
                slots[first : first + length] = [segment.slot] * length
        return slots
