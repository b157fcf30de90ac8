"""All pages of a pool on one device: every site's storage and the slots' tables. Loads are written into it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lora_kernels.errors import TargetError
from lora_kernels.memory import keep_private
from lora_kernels.spec import PoolSpec
from lora_kernels.storage.site import SiteStorage, allocate_site
from lora_kernels.storage.tables import SlotTables


class PageStore:
    """`num_pages` pages and `num_slots` slots for the sites of `spec`; one page id is shared by all layers and sites.

    in_blocks: how pages lie, see SiteStorage
    """

    def __init__(
        self,
        spec: PoolSpec,
        num_pages: int,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        in_blocks: bool,
    ) -> None:
        self.spec = spec
        self.device = device
        self.tables = SlotTables(spec, num_slots, num_pages, device)
        self._sites = {
            site.name: allocate_site(spec, site, num_pages + 1, self.tables, dtype, device, in_blocks=in_blocks)
            for site in spec.sites
        }

    def site(self, name: str) -> SiteStorage:
        """Return the storage of one site. Raises TargetError."""
        try:
            return self._sites[name]
        except KeyError:
            raise TargetError(f"unknown site {name!r}; the pool has {sorted(self._sites)}") from None

    def sites(self) -> list[SiteStorage]:
        """Return the storage of all sites."""
        return list(self._sites.values())

    def give_back(self, pages: Sequence[int]) -> None:
        """Return the memory of these pages, which must be free, to the system."""
        for storage in self._sites.values():
            storage.give_back(pages)

    def keep_private(self) -> bool:
        """Keep all pages out of core dumps, forked children and swap; returns whether the last was allowed."""
        tensors = [tensor for storage in self._sites.values() for tensor in storage.tensors()]
        return all([keep_private(tensor) for tensor in tensors])
