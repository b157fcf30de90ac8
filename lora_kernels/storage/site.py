"""One site's pages: its tensors for all layers, in memory that costs nothing until a page is written."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from lora_kernels.batch import Batch
from lora_kernels.memory import give_back, lazy_zeros, runs
from lora_kernels.spec import PoolSpec, SiteSpec
from lora_kernels.storage.blocks import A_BLOCK, B_BLOCK, K_ALIGN, UNIT, place_in_a_block, unblocked_a, unblocked_b
from lora_kernels.storage.tables import SlotTables

PageIds = slice | Sequence[int] | torch.Tensor


@dataclass(frozen=True, eq=False)
class SiteStorage:
    """One site's pages and tables, for all layers.

    a: [layers, pages + 1, slices, page_size, K rounded up to 32], zero beyond K
    b: [layers, pages + 1, page_size, N]: ranks outside, so that a CPU or GPU lane owns an output column
        In blocks (the C library's pools) a is [layers, pages + 1, slices, page_size / 8, K / 32, 8, 32] and b is
        [layers, pages + 1, page_size / 8, N / 64, 8, 64], every slice of N rounded up to 64: a kernel reads its weights
        from the first byte to the last. Of bfloat16 and int8 two ranks of b lie side by side there, and of 16 bfloat16
        columns of a c and c + 8: see sgmv.h. And all layers of a page lie together (a and b are views): an adapter is
        a few long stretches of memory, which large pages of the system hold without waste.
    tables: the pool's, shared by all sites
    live: int32 [layers, slots], how many of the slot's first pages hold anything for this site and layer
    live_host: the same numbers, [layer][slot], where reading them costs no synchronisation
    offsets: where each slice begins in y, and N at the end
    rank_scales: float32 [layers, pages + 1, slices, page_size], the factor on each rank of 8-bit pages; else None

    The last page is never given out and stays zero: a gather may point there safely.
    """

    spec: SiteSpec
    a: torch.Tensor
    b: torch.Tensor
    tables: SlotTables
    live: torch.Tensor
    live_host: list[list[int]]
    offsets: tuple[int, ...]
    page_size: int
    in_blocks: bool
    rank_scales: torch.Tensor | None = None
    # Whatever a backend wants to keep (native descriptors by layer, launch plans); filled by the backend alone.
    cache: dict[Hashable, object] = field(default_factory=dict)

    @property
    def num_layers(self) -> int:
        """Layers that have this site."""
        return self.a.shape[0]

    @property
    def null_page(self) -> int:
        """Id of the page that is always zero."""
        return self.a.shape[1] - 1

    @property
    def b_offsets(self) -> tuple[int, ...]:
        """Where each slice begins in the columns of b, and where the last one ends."""
        return tuple(_running_sum(_b_widths(self.spec, in_blocks=self.in_blocks)))

    def a_of(self, layer: int, pages: PageIds) -> torch.Tensor:
        """Return A of some pages, [*pages, slices, page_size, K rounded up to 32]; a copy where it lies in blocks."""
        a = self.a[layer, pages]
        return unblocked_a(a) if self.in_blocks else a

    def b_of(self, layer: int, pages: PageIds) -> torch.Tensor:
        """Return B of some pages, [*pages, page_size, N]; a copy where it lies in blocks."""
        b = self.b[layer, pages]
        if not self.in_blocks:
            return b
        widths = zip(self.b_offsets, self.spec.slices, strict=False)
        return torch.cat([unblocked_b(b)[..., begin : begin + width] for begin, width in widths], dim=-1)

    def a_columns(self, layer: int, pages: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Return one column of A's first slice per entry of `columns` [T], of pages [T, p]: [T, p, page_size]."""
        ranks = torch.arange(self.page_size, device=pages.device)
        column = columns.long()[:, None, None]
        page = pages[:, :, None]
        a = self.a[layer, :, 0]
        if not self.in_blocks:
            return a[page, ranks, column]
        return a[page, ranks // UNIT, column // A_BLOCK, ranks % UNIT, place_in_a_block(column, a.dtype)]

    def adapters(self, layer: int, batch: Batch) -> Iterator[tuple[int, torch.Tensor, list[int]]]:
        """Yield slot, row ids and page ids of each adapter of a batch that has any page for this layer."""
        for segment in batch.segments:
            pages = self.tables.page_table[segment.slot, : int(self.live[layer, segment.slot])].tolist()
            if pages:
                yield segment.slot, torch.nonzero(batch.row_slots == segment.slot).flatten(), pages

    def zero(self, pages: Sequence[int]) -> None:
        """Zero these pages in every layer."""
        for first, end in runs(pages):
            for tensor in self.tensors():
                _zero(tensor[:, first:end])

    def give_back(self, pages: Sequence[int]) -> None:
        """Return the memory of these pages, which must be free, to the system."""
        for tensor in self.tensors():
            size = tensor.element_size()
            page = tensor.stride(1) * size
            # Pages outside: one stretch for all layers. Layers outside: one for each.
            together = tensor.stride(1) > tensor.stride(0)
            for first, end in runs(pages):
                for layer in range(1 if together else self.num_layers):
                    address = tensor.data_ptr() + layer * tensor.stride(0) * size + first * page
                    give_back(address, (end - first) * page)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return a, b and, for 8-bit pages, rank_scales."""
        return (self.a, self.b) if self.rank_scales is None else (self.a, self.b, self.rank_scales)


def allocate_site(
    spec: PoolSpec,
    site: SiteSpec,
    pages: int,
    tables: SlotTables,
    dtype: torch.dtype,
    device: torch.device,
    *,
    in_blocks: bool = False,
) -> SiteStorage:
    """Return zeroed storage of one site with `pages` pages, the null page included.

    in_blocks: as the C library reads it; Triton's kernels want rows, and all pages of a layer in one stretch
    """
    layers = spec.layers_of(site)
    slices = len(site.slices)
    size = spec.page_size
    padded_k = _rounded_up(site.in_features, K_ALIGN)
    n = sum(_b_widths(site, in_blocks=in_blocks))
    a_page: tuple[int, ...] = (slices, size, padded_k)
    b_page: tuple[int, ...] = (size, n)
    if in_blocks:
        a_page = (slices, size // UNIT, padded_k // A_BLOCK, UNIT, A_BLOCK)
        b_page = (size // UNIT, n // B_BLOCK, UNIT, B_BLOCK)
    live, live_host = tables.live(site.name)
    return SiteStorage(
        spec=site,
        a=_paged(layers, pages, a_page, dtype, device, together=in_blocks),
        b=_paged(layers, pages, b_page, dtype, device, together=in_blocks),
        tables=tables,
        live=live,
        live_host=live_host,
        offsets=tuple(_running_sum(site.slices)),
        page_size=size,
        in_blocks=in_blocks,
        rank_scales=lazy_zeros((layers, pages, slices, size), torch.float32, device) if dtype.itemsize == 1 else None,
    )


def _rounded_up(value: int, to: int) -> int:
    return -(-value // to) * to


def _b_widths(site: SiteSpec, *, in_blocks: bool) -> list[int]:
    """Return the columns of b that each slice takes."""
    return [_rounded_up(width, B_BLOCK) if in_blocks else width for width in site.slices]


def _running_sum(widths: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(widths)]


def _paged(
    layers: int, pages: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, together: bool
) -> torch.Tensor:
    """Return zeros [layers, pages, *shape]. together: all layers of a page in one stretch."""
    if not together:
        return lazy_zeros((layers, pages, *shape), dtype, device)
    return lazy_zeros((pages, layers, *shape), dtype, device).transpose(0, 1)


def _zero(pages: torch.Tensor) -> None:
    """Zero as `zero_` does, but on a CPU in this thread alone.

    torch would share 10 MB among threads that first have to get a core, where those of a step have them all.
    """
    whole = pages.transpose(0, 1)
    if pages.is_cpu and whole.is_contiguous():
        ctypes.memset(whole.data_ptr(), 0, whole.nbytes)
    else:
        pages.zero_()
