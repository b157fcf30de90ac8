"""Copy a checked load into pages that no step reads yet: a few large operations, which release the GIL."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from lora_kernels.errors import NonFiniteError
from lora_kernels.loading.plan import Group, LoadPlan
from lora_kernels.loading.quantize import quantize_group
from lora_kernels.spec import Target
from lora_kernels.storage.blocks import B_BLOCK
from lora_kernels.storage.site import SiteStorage


class Copy(Protocol):
    """A backend's way of copying weights into pages, in its own order."""

    def __call__(
        self, into: torch.Tensor, layers: Sequence[int], weights: Sequence[torch.Tensor], *, turned: bool = False
    ) -> None:
        """Set into[layers[i]] = weights[i], rounded, or its transpose, from the first rank and column on.

        into: [layers, page_size, columns], or in blocks. On the host, in any number of threads at once.
        """


@dataclass(frozen=True, eq=False)
class SitePages:
    """Where one site's part of a load goes, page after page, in the pool or in a blob on its way there.

    a: per page [layers, slices, page_size, padded K]; b: per page [layers, page_size, N]; like SiteStorage's in rows or
        in blocks
    b_offsets: where each slice begins in the columns of b, and where the last one ends
    rank_scales: per page [layers, slices, page_size] for 8-bit pages, else empty
    first_layer: the layer of the model that index 0 stands for
    """

    a: list[torch.Tensor]
    b: list[torch.Tensor]
    rank_scales: list[torch.Tensor]
    b_offsets: tuple[int, ...]
    page_size: int
    first_layer: int = 0

    @classmethod
    def of(cls, storage: SiteStorage, pages: Sequence[int]) -> SitePages:
        """Return the pool's own memory."""
        scales = storage.rank_scales
        return cls(
            [storage.a[:, page] for page in pages],
            [storage.b[:, page] for page in pages],
            [] if scales is None else [scales[:, page] for page in pages],
            storage.b_offsets,
            storage.page_size,
        )

    def a_of(self, page: int, slice_index: int) -> torch.Tensor:
        """Return a slice of A as `Copy` takes it."""
        return self.a[page][:, slice_index]

    def b_of(self, page: int, slice_index: int) -> torch.Tensor:
        """Return a slice of B as `Copy` takes it."""
        begin, end = self.b_offsets[slice_index], self.b_offsets[slice_index + 1]
        b = self.b[page]
        return b[:, :, begin:end] if b.dim() == 3 else b[:, :, begin // B_BLOCK : end // B_BLOCK]


def write_plan(plan: LoadPlan, pages: Mapping[str, SitePages], copy: Copy, pause: Callable[[], None]) -> float | None:
    """Fill zeroed `pages` (all sites of the plan); returns the largest relative error of 8-bit pages, None for others.

    copy: the backend's
    pause: called between pieces of the work

    Raises NonFiniteError, leaving rubbish in `pages`: they must be zeroed before they are read.
    """
    worst = None
    first = 0
    for part in plan.parts:
        for group in part.groups:
            site = pages[group.site]
            if site.rank_scales:
                quantized = quantize_group(group, site.a[0].dtype, pause)
                _copy(quantized.group, site, first, copy, pause)
                _copy_rank_scales(quantized.rank_scales, group, site, first)
                worst = max(worst or 0.0, quantized.error)
            else:
                _copy(group, site, first, copy, pause)
        first += part.pages
    for name, site in pages.items():
        pause()
        if not site.rank_scales and not (_all_finite(site.a) and _all_finite(site.b)):
            raise _not_finite(plan, name, site.a[0].dtype)
    return worst


def _copy(group: Group, site: SitePages, first: int, copy: Copy, pause: Callable[[], None]) -> None:
    a, b = group.a, group.folded_b()
    layers = [layer - site.first_layer for layer in group.layers]
    for page, rows in _rank_blocks(group.rank, site.page_size, first):
        whole = rows.stop - rows.start == group.rank
        into_a, into_b = site.a_of(page, group.slice_index), site.b_of(page, group.slice_index)
        pause()
        copy(into_a, layers, a if whole else [t[rows] for t in a])
        pause()
        copy(into_b, layers, b if whole else [t[:, rows] for t in b], turned=True)


def _copy_rank_scales(rank_scales: torch.Tensor, group: Group, site: SitePages, first: int) -> None:
    """rank_scales [layers of the group, rank]"""
    layers = [layer - site.first_layer for layer in group.layers]
    for page, rows in _rank_blocks(group.rank, site.page_size, first):
        site.rank_scales[page][layers, group.slice_index, : rows.stop - rows.start] = rank_scales[:, rows]


def _rank_blocks(rank: int, page_size: int, first: int) -> Iterator[tuple[int, slice]]:
    """(page, its ranks) of an adapter whose pages begin at `first`."""
    for offset in range(0, rank, page_size):
        yield first + offset // page_size, slice(offset, min(offset + page_size, rank))


def _all_finite(pages: list[torch.Tensor]) -> bool:
    """Return whether smallest and largest are finite, which they are only if all are: a NaN anywhere is both.

    One pass without a copy, where a sum in float32 first copies bfloat16 to float32: ten times as long, and 20 MB for
    an adapter of rank 16. Python compares the two: each operation of torch gives the interpreter away, and a busy one
    comes back late.
    """
    return all(math.isfinite(extreme) for page in pages for extreme in map(float, torch.aminmax(page)))


def _not_finite(plan: LoadPlan, site: str, dtype: torch.dtype) -> NonFiniteError:
    """Name the first target at fault."""
    for group in (group for part in plan.parts for group in part.groups if group.site == site):
        for layer, a, b in zip(group.layers, group.a, group.folded_b(), strict=True):
            if not (a.to(dtype).isfinite().all() and b.to(dtype).isfinite().all()):
                return NonFiniteError(f"{Target(layer, site, group.slice_index)}: weights are not finite in {dtype}")
    return NonFiniteError(f"{site}: weights are not finite in {dtype}")
