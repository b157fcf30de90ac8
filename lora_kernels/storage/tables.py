"""Which pages each slot lists, with which factors: on the device for kernels, on the host for all else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lora_kernels.spec import PoolSpec


@dataclass(frozen=True, eq=False)
class Listing:
    """One slot's entries, host numbers and the same packed for one copy; made in any thread.

    pages, scales, ranks: per listed page
    live: per site, the number of leading pages in use in each layer
    packed: int32 [3, max_pages]: page ids, bits of the float32 scales, ranks
    packed_live: int32 [layers of all sites, in the spec's order]
    """

    pages: tuple[int, ...]
    scales: tuple[float, ...]
    ranks: tuple[int, ...]
    live: Mapping[str, list[int]]
    packed: torch.Tensor
    packed_live: torch.Tensor


class SlotTables:
    """The tables of a pool: `page_table`, `page_scales`, `page_ranks` [slots, max_pages] and `live` of every site."""

    def __init__(self, spec: PoolSpec, num_slots: int, null_page: int, device: torch.device) -> None:
        self._spec = spec
        self._null_page = null_page
        self._pinned = device.type == "cuda"
        self._packed = torch.zeros(3, num_slots, spec.max_pages, dtype=torch.int32, device=device)
        self._packed[0] = null_page
        self.page_table = self._packed[0]
        self.page_scales = self._packed[1].view(torch.float32)
        self.page_ranks = self._packed[2]
        depth = sum(spec.layers_of(site) for site in spec.sites)
        # Every layer's row begins at 16 bytes: else Triton compiles another variant for some layers.
        self._live = torch.zeros(depth, -(-num_slots // 4) * 4, dtype=torch.int32, device=device)[:, :num_slots]
        self._live_host = [[0] * num_slots for _ in range(depth)]
        self._listings: list[Listing | None] = [None] * num_slots
        # Pages of each slot, on the host; -1: the slot is empty.
        self.page_counts = np.full(num_slots, -1, np.int32)
        # How often a slot's entries were replaced: what was derived from them before is stale.
        self.changes = 0
        self._empty = self.prepare((), (), (), {site.name: [0] * spec.layers_of(site) for site in spec.sites})

    def live(self, site: str) -> tuple[torch.Tensor, list[list[int]]]:
        """Return the site's rows of the live table: int32 [layers, slots], and the same on the host."""
        first = 0
        for spec in self._spec.sites:
            end = first + self._spec.layers_of(spec)
            if spec.name == site:
                return self._live[first:end], self._live_host[first:end]
            first = end
        raise KeyError(site)

    def listing(self, slot: int) -> Listing | None:
        """Return what the slot lists, None when it is empty."""
        return self._listings[slot]

    def prepare(
        self, pages: Sequence[int], scales: Sequence[float], ranks: Sequence[int], live: Mapping[str, list[int]]
    ) -> Listing:
        """Pack a slot's entries; touches no table, so any thread may call it."""
        packed = torch.zeros(3, self._spec.max_pages, dtype=torch.int32, pin_memory=self._pinned)
        packed[0] = self._null_page
        packed[0, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        packed[1, : len(pages)] = torch.tensor(scales, dtype=torch.float32).view(torch.int32)
        packed[2, : len(pages)] = torch.tensor(ranks, dtype=torch.int32)
        flat = [count for site in self._spec.sites for count in live[site.name]]
        packed_live = torch.tensor(flat, dtype=torch.int32, pin_memory=self._pinned)
        return Listing(tuple(pages), tuple(scales), tuple(ranks), live, packed, packed_live)

    def set(self, slot: int, listing: Listing) -> None:
        """Make `slot` list these pages: two small copies, neither of which waits for a device."""
        self._write(slot, listing)
        self._listings[slot] = listing
        self.page_counts[slot] = len(listing.pages)

    def clear(self, slot: int) -> None:
        """Make `slot` list nothing but the null page."""
        self._write(slot, self._empty)
        self._listings[slot] = None
        self.page_counts[slot] = -1

    def _write(self, slot: int, listing: Listing) -> None:
        self.changes += 1
        self._packed[:, slot].copy_(listing.packed, non_blocking=True)
        self._live[:, slot].copy_(listing.packed_live, non_blocking=True)
        counts = (count for site in self._spec.sites for count in listing.live[site.name])
        for row, count in zip(self._live_host, counts, strict=True):
            row[slot] = count
