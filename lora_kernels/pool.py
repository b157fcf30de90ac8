"""Adapter weights in pages of 16 ranks, and the tables that say which slot uses which page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from lora_kernels.errors import DtypeError, NonFiniteError, RankError, ShapeError, SlotError, TargetError
from lora_kernels.loading import PreparedAdapter, adapter_rank, prepare_adapter
from lora_kernels.ops.backend import Backend, choose_backend
from lora_kernels.pages import PageAllocator
from lora_kernels.spec import AdapterTensors, PoolSpec, SiteSpec

POOL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Rows of A are padded to whole 64-byte vectors of bfloat16, so that no kernel needs a tail in K.
K_ALIGN = 32


@dataclass(frozen=True, eq=False)
class SiteStorage:
    """One site's pages and tables, for all layers.

    a: [layers, pages + 1, slices, page_size, K rounded up to 32], zero beyond K
    b: [layers, pages + 1, page_size, N]: ranks outside, so that a CPU or GPU lane owns an output column
    live: int32 [layers, slots], how many of the slot's first pages hold anything for this site and layer
    live_host: the same numbers, [layer][slot], where reading them costs no synchronisation
    offsets: where each slice begins in y, and N at the end

    The last page is never given out and stays zero: a gather may point there safely.
    """

    spec: SiteSpec
    a: torch.Tensor
    b: torch.Tensor
    live: torch.Tensor
    live_host: list[list[int]]
    offsets: tuple[int, ...]
    # Whatever a backend wants to keep per layer (native descriptors, views); filled by the backend alone.
    cache: dict[int, object] = field(default_factory=dict)

    @property
    def num_layers(self) -> int:
        """Layers that have this site."""
        return self.a.shape[0]

    def set_live(self, slot: int, pages_by_layer: Sequence[int]) -> None:
        """Record how many of the slot's pages each layer uses."""
        self.live[:, slot] = torch.tensor(pages_by_layer, dtype=torch.int32)
        for layer, count in enumerate(pages_by_layer):
            self.live_host[layer][slot] = count


class AdapterPool:
    """A fixed set of pages and slots on one device; loads, blends and evicts adapters.

    One page id is shared by all layers and sites. Tables, on the pool's device:
    `page_table` int32 [slots, max_pages], `page_scales` float32 and `page_ranks` int32 of the same shape (the factor
    on, and the ranks used in, each listed page). Entries past a slot's pages name the all-zero page.

    Not thread-safe: load, blend and evict belong to the thread that launches kernels. `backend` is chosen from the
    device and dtype ("c", "torch", "triton") unless it is named, which raises BackendError where it cannot run.
    """

    def __init__(
        self,
        spec: PoolSpec,
        num_pages: int,
        num_slots: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        backend: str | None = None,
    ) -> None:
        if dtype not in POOL_DTYPES:
            raise DtypeError(f"pool dtype must be one of {POOL_DTYPES}, got {dtype}")
        if num_pages < 1 or num_slots < 1:
            raise ShapeError(f"a pool needs pages and slots, got {num_pages} and {num_slots}")
        self.spec = spec
        self.dtype = dtype
        self.device = torch.device(device)
        self.num_pages = num_pages
        self.num_slots = num_slots
        self.backend: Backend = choose_backend(self.device, dtype, spec.page_size, backend)
        self._sites = {site.name: self._allocate_site(site) for site in spec.sites}
        self._allocator = PageAllocator(num_pages)
        self._slot_pages: list[list[int] | None] = [None] * num_slots
        table = (num_slots, spec.max_pages)
        self.page_table = torch.full(table, self.null_page, dtype=torch.int32, device=self.device)
        self.page_scales = torch.zeros(table, dtype=torch.float32, device=self.device)
        self.page_ranks = torch.zeros(table, dtype=torch.int32, device=self.device)

    @property
    def null_page(self) -> int:
        """Id of the page that is always zero."""
        return self.num_pages

    @property
    def free_pages(self) -> int:
        """Pages that no slot lists."""
        return self._allocator.free

    def pages_needed(self, tensors: AdapterTensors) -> int:
        """Pages `load` would take. Raises what `load` raises on wrong targets, shapes, ranks and dtypes."""
        return self._pages_for(adapter_rank(self.spec, tensors))

    def slot_pages(self, slot: int) -> tuple[int, ...]:
        """Page ids of a loaded slot, in the order of its page table. Raises SlotError."""
        return tuple(self._loaded(slot))

    def is_loaded(self, slot: int) -> bool:
        """Whether `slot` holds an adapter. Raises SlotError when it is out of range."""
        self._check_slot(slot)
        return self._slot_pages[slot] is not None

    def site(self, name: str) -> SiteStorage:
        """Storage of one site, for kernels. Raises TargetError."""
        try:
            return self._sites[name]
        except KeyError:
            raise TargetError(f"unknown site {name!r}; the pool has {sorted(self._sites)}") from None

    def load(self, slot: int, tensors: AdapterTensors) -> None:
        """Copy one adapter into free pages and make it `slot`.

        Targets with a smaller rank than the adapter's largest are padded with zeros; a target whose scale differs from
        the adapter's most common one has the quotient folded into b. Tensors may be on any device.
        Raises SlotError, TargetError, ShapeError, RankError, DtypeError, NonFiniteError or PoolFullError; the pool is
        then unchanged.
        """
        self.load_blend(slot, [(tensors, 1.0)])

    def load_blend(self, slot: int, parts: Sequence[tuple[AdapterTensors, float]]) -> None:
        """Make `slot` the weighted sum of several adapters: ΔW = Σ weight · ΔW_part, at no cost beyond their pages.

        Raises like `load`; RankError also when the parts together have more pages than a slot can list.
        """
        self._check_empty(slot)
        self._check_weights(weight for _, weight in parts)
        prepared = [prepare_adapter(self.spec, part, dtype=self.dtype, device=self.device) for part, _ in parts]
        counts = [self._pages_for(adapter.rank) for adapter in prepared]
        self._check_page_count(sum(counts))
        pages = self._allocator.allocate(sum(counts))
        for storage in self._sites.values():
            storage.a[:, pages] = 0
            storage.b[:, pages] = 0
        first = 0
        scales: list[float] = []
        ranks: list[int] = []
        lives = {name: [0] * storage.num_layers for name, storage in self._sites.items()}
        for adapter, count, (_, weight) in zip(prepared, counts, parts, strict=True):
            self._write(adapter, pages[first : first + count])
            for target, (a, _) in adapter.pairs.items():
                live = lives[target.site]
                live[target.layer] = max(live[target.layer], first + self._pages_for(a.shape[0]))
            scales += [adapter.scale * weight] * count
            ranks += [min(self.spec.page_size, adapter.rank - page * self.spec.page_size) for page in range(count)]
            first += count
        for name, storage in self._sites.items():
            storage.set_live(slot, lives[name])
        self._write_tables(slot, pages, scales, ranks)

    def blend(self, slot: int, parts: Sequence[tuple[int, float]]) -> None:
        """Make `slot` the weighted sum of slots already loaded, sharing their pages: no weight is copied.

        The parts may be evicted afterwards; shared pages live until the last slot that lists them goes.
        Raises SlotError, NonFiniteError or RankError; the pool is then unchanged.
        """
        self._check_empty(slot)
        self._check_weights(weight for _, weight in parts)
        pages = [page for part, _ in parts for page in self._loaded(part)]
        self._check_page_count(len(pages))
        scales: list[float] = []
        ranks: list[int] = []
        lives = {name: [0] * storage.num_layers for name, storage in self._sites.items()}
        for part, weight in parts:
            first, count = len(scales), len(self._loaded(part))
            scales += [scale * weight for scale in self.page_scales[part, :count].tolist()]
            ranks += self.page_ranks[part, :count].tolist()
            for name, storage in self._sites.items():
                for layer, live in enumerate(storage.live_host):
                    if live[part]:
                        lives[name][layer] = first + live[part]
        self._allocator.share(pages)
        for name, storage in self._sites.items():
            storage.set_live(slot, lives[name])
        self._write_tables(slot, pages, scales, ranks)

    def evict(self, slot: int) -> None:
        """Empty `slot`; pages that no other slot shares are zeroed and free again. Raises SlotError if it is empty."""
        pages = self._loaded(slot)
        freed = self._allocator.release(pages)
        self._slot_pages[slot] = None
        self.page_table[slot] = self.null_page
        self.page_scales[slot] = 0
        self.page_ranks[slot] = 0
        for storage in self._sites.values():
            storage.set_live(slot, [0] * storage.num_layers)
            storage.a[:, freed] = 0
            storage.b[:, freed] = 0

    def _allocate_site(self, site: SiteSpec) -> SiteStorage:
        layers, pages = self.spec.layers_of(site), self.num_pages + 1
        padded_k = -(-site.in_features // K_ALIGN) * K_ALIGN
        a = torch.zeros(
            layers, pages, len(site.slices), self.spec.page_size, padded_k, dtype=self.dtype, device=self.device
        )
        b = torch.zeros(layers, pages, self.spec.page_size, site.out_features, dtype=self.dtype, device=self.device)
        live = torch.zeros(layers, self.num_slots, dtype=torch.int32, device=self.device)
        offsets = [0]
        for width in site.slices:
            offsets.append(offsets[-1] + width)
        return SiteStorage(site, a, b, live, live.tolist(), tuple(offsets))

    def _write(self, adapter: PreparedAdapter, pages: list[int]) -> None:
        """Copy one adapter into zeroed `pages`."""
        size = self.spec.page_size
        for target, (a, b) in adapter.pairs.items():
            storage = self._sites[target.site]
            begin, end = storage.offsets[target.slice_index], storage.offsets[target.slice_index + 1]
            for page, row in zip(pages, range(0, a.shape[0], size), strict=False):
                used = min(size, a.shape[0] - row)
                storage.a[target.layer, page, target.slice_index, :used, : a.shape[1]] = a[row : row + used]
                storage.b[target.layer, page, :used, begin:end] = b[:, row : row + used].T

    def _write_tables(self, slot: int, pages: list[int], scales: list[float], ranks: list[int]) -> None:
        count = len(pages)
        self.page_table[slot, :count] = torch.tensor(pages, dtype=torch.int32)
        self.page_scales[slot, :count] = torch.tensor(scales, dtype=torch.float32)
        self.page_ranks[slot, :count] = torch.tensor(ranks, dtype=torch.int32)
        self._slot_pages[slot] = pages

    def _pages_for(self, rank: int) -> int:
        return -(-rank // self.spec.page_size)

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.num_slots:
            raise SlotError(f"slot {slot} is outside 0..{self.num_slots - 1}")

    def _check_empty(self, slot: int) -> None:
        if self.is_loaded(slot):
            raise SlotError(f"slot {slot} is taken: evict it first")

    def _loaded(self, slot: int) -> list[int]:
        self._check_slot(slot)
        pages = self._slot_pages[slot]
        if pages is None:
            raise SlotError(f"slot {slot} is empty")
        return pages

    def _check_weights(self, weights: Iterable[float]) -> None:
        for weight in weights:
            if not math.isfinite(weight):
                raise NonFiniteError(f"blend weight is {weight}")

    def _check_page_count(self, count: int) -> None:
        if count > self.spec.max_pages:
            raise RankError(f"slot would list {count} pages, at most {self.spec.max_pages} fit")
