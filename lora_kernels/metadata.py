"""Which rows of a batch belong to which slot: requests are sorted by slot, tokens are never moved."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from lora_kernels.errors import ShapeError, SlotError
from lora_kernels.pool import AdapterPool

# Rows of one GPU tile: the smallest N of a tensor-core instruction pair, so that a lone row wastes little.
TILE_ROWS = 16


@dataclass(frozen=True)
class Segment:
    """All rows of one distinct adapter: `runs` are (first row, number of rows), one per request, ascending."""

    slot: int
    rows: int
    runs: tuple[tuple[int, int], ...]


class _Layout:
    """Where each array begins in the packed int32 buffer, given its capacities.

    counts[4] (rows, rows with an adapter, segments, tiles) | segment_slots | segment_starts | row_order | row_slots |
    tiles
    """

    def __init__(self, max_rows: int, max_segments: int) -> None:
        self.segment_slots = 4
        self.segment_starts = self.segment_slots + max_segments
        self.row_order = self.segment_starts + max_segments + 1
        self.row_slots = self.row_order + max_rows
        self.tiles = self.row_slots + max_rows
        # Every segment begins a tile, and every TILE_ROWS rows fill one.
        self.size = self.tiles + 3 * (max_segments + max_rows // TILE_ROWS)

    def pack(self, rows: int, segments: tuple[Segment, ...], row_slots: array[int]) -> torch.Tensor:
        """The buffer on the host; entries past the batch are 0."""
        starts = [0]
        row_order = array("i")
        tiles = array("i")
        for segment in segments:
            for offset in range(0, segment.rows, TILE_ROWS):
                tiles.extend((starts[-1] + offset, min(TILE_ROWS, segment.rows - offset), segment.slot))
            starts.append(starts[-1] + segment.rows)
            for first, length in segment.runs:
                row_order.extend(range(first, first + length))
        packed = array("i", bytes(4 * self.size))
        packed[0:4] = array("i", (rows, starts[-1], len(segments), len(tiles) // 3))
        packed[self.segment_slots : self.segment_slots + len(segments)] = array("i", [s.slot for s in segments])
        packed[self.segment_starts : self.segment_starts + len(starts)] = array("i", starts)
        packed[self.row_order : self.row_order + len(row_order)] = row_order
        packed[self.row_slots : self.row_slots + rows] = row_slots
        packed[self.tiles : self.tiles + len(tiles)] = tiles
        return torch.frombuffer(packed, dtype=torch.int32)


class MetadataBuffers:
    """Static device memory for metadata, so that a captured CUDA graph finds each step's batch at the same addresses.

    `packed` is int32 and filled by one copy a step.
    """

    def __init__(self, max_rows: int, max_segments: int, device: torch.device | str = "cpu") -> None:
        self.max_rows = max_rows
        self.max_segments = max_segments
        self.packed = torch.zeros(_Layout(max_rows, max_segments).size, dtype=torch.int32, device=device)


@dataclass(frozen=True, eq=False)
class BatchMetadata:
    """One step's batch, good for every site and layer of it. Build it once a step; it is stale after load or evict.

    rows: T, rows of x and y
    segments: the distinct adapters, ascending by slot (rows with slot -1 are in none)
    max_pages: the longest page list among them
    row_order: int32 [rows with an adapter], row ids grouped by segment, each segment's rows ascending
    segment_starts: int32 [segments + 1], where each segment begins in row_order
    segment_slots: int32 [segments]
    row_slots: int32 [rows], the slot of each row or -1
    tiles: int32 [3 · capacity], (first in row_order, rows, slot) of at most TILE_ROWS rows of one adapter each
    counts: int32 [4]: rows, rows with an adapter, segments, tiles; what a captured graph reads its work from
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
    counts: torch.Tensor
    # Whatever a backend derives once a step; filled by the backend alone.
    cache: dict[str, object] = field(default_factory=dict)

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
        fine). With `out`, the device tensors are views of its static memory.
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
        layout = _Layout(max_rows, max_segments)
        host = layout.pack(rows, segments, row_slots)
        if out is None:
            packed = host.to(pool.device)
        else:
            packed = out.packed
            packed.copy_(host, non_blocking=True)
        adapted = sum(segment.rows for segment in segments)
        return cls(
            pool=pool,
            rows=rows,
            segments=segments,
            max_pages=max((len(pool.slot_pages(segment.slot)) for segment in segments), default=0),
            row_order=packed[layout.row_order : layout.row_order + adapted],
            segment_starts=packed[layout.segment_starts : layout.segment_starts + len(segments) + 1],
            segment_slots=packed[layout.segment_slots : layout.segment_slots + len(segments)],
            row_slots=packed[layout.row_slots : layout.row_slots + rows],
            tiles=packed[layout.tiles :],
            counts=packed[: layout.segment_slots],
        )
