"""Which rows of a batch belong to which slot of a pool: built once per step from the requests' slots and lengths."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from lora_kernels.batch import Batch, Layout, MetadataBuffers, Segment
from lora_kernels.errors import ShapeError, SlotError
from lora_kernels.pool import AdapterPool


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchMetadata(Batch):
    """One step's batch over a pool, good for every site and layer of it.

    Build it once per step. It is stale after a load or an evict, and until then good for any step of the same rows.
    """

    pool: AdapterPool
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
        row_slots, segments = _grouped(slots_per_request, lens_per_request, pool)
        rows = len(row_slots)
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
        layout = Layout(max_rows, max_segments, max_pages)
        if out is not None:
            pool.settle(segment.slot for segment in segments)
        host = layout.pack(rows, segments, row_slots, pages if pool.backend.NEEDS_UNITS else [0] * len(segments))
        if out is None:
            packed = host.to(pool.device)
        else:
            packed = out.packed
            packed[: len(host)].copy_(host, non_blocking=True)
        return cls(
            pool=pool,
            rows=rows,
            segments=segments,
            max_pages=most_pages,
            tile_rows=layout.tile_rows,
            _changes=pool.tables.changes,
            **layout.views(packed, rows, sum(segment.rows for segment in segments), len(segments)),
        )

    def wait_for_layer(self, layer: int) -> None:
        """Make the current stream wait for one layer of adapters that are still being copied; free when none is."""
        if not self.pool.is_settled:
            self.pool.wait_for_layer(layer, [segment.slot for segment in self.segments])

    def pick(self, rows: Sequence[int], out: MetadataBuffers | None = None) -> BatchMetadata:
        """Return metadata of some of the batch's rows, in the order given: those that logits are computed for.

        Raises ShapeError when a row is out of range.
        """
        if rows and not 0 <= min(rows) <= max(rows) < self.rows:
            raise ShapeError(f"rows {min(rows)}..{max(rows)} are not all within the batch's {self.rows}")
        slots = self.slots_by_row()
        return BatchMetadata.build([slots[row] for row in rows], [1] * len(rows), self.pool, out)

    def slots_by_row(self) -> list[int]:
        """Return the slot of each row, -1 for the base, on the host."""
        slots = [-1] * self.rows
        for segment in self.segments:
            for first, length in segment.runs:
                slots[first : first + length] = [segment.slot] * length
        return slots


def _grouped(slots: Sequence[int], lengths: Sequence[int], pool: AdapterPool) -> tuple[array[int], tuple[Segment, ...]]:
    """Return the slot of each row, and the segments. Raises ShapeError or SlotError."""
    if len(slots) != len(lengths):
        raise ShapeError(f"{len(slots)} slots for {len(lengths)} lengths")
    runs: dict[int, list[tuple[int, int]]] = {}
    row_slots = array("i")
    for slot, length in zip(slots, lengths, strict=True):
        if length < 0:
            raise ShapeError(f"negative request length {length}")
        if slot != -1 and not pool.is_loaded(slot):
            raise SlotError(f"slot {slot} is empty")
        if length:
            if slot != -1:
                runs.setdefault(slot, []).append((len(row_slots), length))
            row_slots.extend((slot,) * length)
    segments = [Segment(slot, sum(length for _, length in runs[slot]), tuple(runs[slot])) for slot in sorted(runs)]
    return row_slots, tuple(segments)
