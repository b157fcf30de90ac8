"""Which rows of a batch belong to which slot of a pool: built once per step from the requests' slots and lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lora_kernels.batch import Batch, Grouped, Layout, MetadataBuffers, tile_rows_for
from lora_kernels.errors import ShapeError, SlotError
from lora_kernels.extras.rows import RowExtras
from lora_kernels.pool import AdapterPool


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchMetadata(Batch):
    """One step's batch over a pool, good for every site and layer of it.

    extras: of rows whose adapters have any; None where no row's has: then nothing is computed for them

    Build it once per step. It is stale after a load or an evict, and until then good for any step of the same rows.
    """

    pool: AdapterPool
    extras: RowExtras | None = None
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
        fine). With `out`, the device tensors are views of its static memory, filled by one copy that the host does not
        wait for, and none where they hold this batch already, as in most decode steps. The current stream then also
        waits for adapters of the batch that were published while they were still being copied: a graph replay cannot
        (see `AdapterPool.settle`).
        Raises ShapeError (lengths), SlotError (slot out of range or empty), or BackendError (`out` under capture).
        """
        if out is None:
            return cls._build(slots_per_request, lens_per_request, pool, None)
        request = tuple(slots_per_request), tuple(lens_per_request), pool, pool.tables.changes, out.current_stream()
        if out.holds is not None and out.holds[0] == request:
            meta: BatchMetadata = out.holds[1]
            if not pool.is_settled:
                pool.settle(meta.grouped.segment_slots.tolist())
            return meta
        meta = cls._build(slots_per_request, lens_per_request, pool, out)
        out.holds = request, meta
        return meta

    @classmethod
    def _build(
        cls, slots: Sequence[int], lengths: Sequence[int], pool: AdapterPool, out: MetadataBuffers | None
    ) -> BatchMetadata:
        grouped = _grouped(slots, lengths, pool)
        rows, count = len(grouped.row_slots), len(grouped.segment_slots)
        pages = pool.tables.page_counts[grouped.segment_slots]
        most_pages = int(pages.max(initial=0))
        if out is not None:
            _check_fit(rows, count, most_pages, out)
        listed = pages if pool.backend.NEEDS_UNITS else np.zeros_like(pages)
        if out is not None:
            if not pool.is_settled:
                pool.settle(grouped.segment_slots.tolist())
            out.fill(grouped, listed)
            layout, packed = out.layout, out.packed
        else:
            layout = Layout(rows, count, most_pages, tile_rows_for(rows))
            host = np.zeros(layout.size, np.int32)
            layout.pack(grouped, listed, host)
            packed = torch.from_numpy(host).to(pool.device)
        arrays = layout.views(packed, rows, len(grouped.row_order), count)
        return cls(
            pool=pool,
            extras=RowExtras.of(grouped, arrays["row_order"], pool.extras_of) if pool.has_extras else None,
            rows=rows,
            has_adapters=count > 0,
            grouped=grouped,
            max_pages=most_pages,
            tile_rows=layout.tile_rows,
            _changes=pool.tables.changes,
            **arrays,
        )

    def wait_for_layer(self, layer: int) -> None:
        """Make the current stream wait for one layer of adapters that are still being copied; free when none is."""
        if not self.pool.is_settled:
            self.pool.wait_for_layer(layer, self.grouped.segment_slots.tolist())

    def pick(self, rows: Sequence[int], out: MetadataBuffers | None = None) -> BatchMetadata:
        """Return metadata of some of the batch's rows, in the order given: those that logits are computed for.

        Raises ShapeError when a row is out of range.
        """
        if rows and not 0 <= min(rows) <= max(rows) < self.rows:
            raise ShapeError(f"rows {min(rows)}..{max(rows)} are not all within the batch's {self.rows}")
        slots = self.grouped.row_slots[np.asarray(rows, np.int64)].tolist()
        return BatchMetadata.build(slots, [1] * len(slots), self.pool, out)

    def slots_by_row(self) -> list[int]:
        """Return the slot of each row, -1 for the base, on the host."""
        return self.grouped.row_slots.tolist()


def _grouped(slots: Sequence[int], lengths: Sequence[int], pool: AdapterPool) -> Grouped:
    """Return the rows by slot. Raises ShapeError or SlotError."""
    if len(slots) != len(lengths):
        raise ShapeError(f"{len(slots)} slots for {len(lengths)} lengths")
    of_request, rows = np.asarray(slots, np.int32), np.asarray(lengths, np.int32)
    if rows.min(initial=0) < 0:
        raise ShapeError(f"negative request length {rows.min()}")
    least, most = of_request.min(initial=-1), of_request.max(initial=-1)
    if least < -1 or most >= pool.num_slots:
        raise SlotError(f"slots {least}..{most} are not all within -1..{pool.num_slots - 1}")
    empty = (of_request >= 0) & (pool.tables.page_counts[of_request] < 0)
    if empty.any():
        raise SlotError(f"slot {of_request[empty][0]} is empty")
    return Grouped.of(of_request, rows)


def _check_fit(rows: int, segments: int, pages: int, out: MetadataBuffers) -> None:
    if rows > out.max_rows or segments > out.max_segments:
        raise ShapeError(
            f"{rows} rows and {segments} adapters do not fit buffers for {out.max_rows} and {out.max_segments}"
        )
    if pages > out.max_pages:
        raise ShapeError(f"an adapter of {pages} pages does not fit buffers for {out.max_pages}")
