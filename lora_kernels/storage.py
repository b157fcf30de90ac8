"""Where the pages lie: one site's tensors for all layers, in memory that costs nothing until a page is written."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import math
import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from lora_kernels.spec import PoolSpec, SiteSpec

# Rows of A are padded to whole 64-byte vectors of bfloat16, so that no kernel needs a tail in K.
K_ALIGN = 32
# Blocks of the C library (LK_UNIT, LK_A_BLOCK and LK_B_BLOCK of sgmv.h): ranks, and columns of A and of B.
UNIT, A_BLOCK, B_BLOCK = 8, K_ALIGN, 64
# Of so many bfloat16 columns of A in a block, each of the first half lies beside one of the second.
WOVEN = 16
# Types of weights whose ranks lie in pairs in B.
PAIRED = (torch.bfloat16, torch.int8)


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
    live: int32 [layers, slots], how many of the slot's first pages hold anything for this site and layer
    live_host: the same numbers, [layer][slot], where reading them costs no synchronisation
    offsets: where each slice begins in y, and N at the end
    rank_scales: float32 [layers, pages + 1, slices, page_size], the factor on each rank of 8-bit pages; else None

    The last page is never given out and stays zero: a gather may point there safely.
    """

    spec: SiteSpec
    a: torch.Tensor
    b: torch.Tensor
    live: torch.Tensor
    live_host: list[list[int]]
    offsets: tuple[int, ...]
    page_size: int
    in_blocks: bool
    rank_scales: torch.Tensor | None = None
    # Whatever a backend wants to keep per layer (native descriptors, views); filled by the backend alone.
    cache: dict[int, object] = field(default_factory=dict)

    @property
    def num_layers(self) -> int:
        """Layers that have this site."""
        return self.a.shape[0]

    @property
    def b_offsets(self) -> tuple[int, ...]:
        """Where each slice begins in the columns of b, and where the last one ends."""
        return tuple(_running_sum(_b_widths(self.spec, in_blocks=self.in_blocks)))

    def a_of(self, layer: int, pages: PageIds) -> torch.Tensor:
        """A of some pages, [*pages, slices, page_size, K rounded up to 32]; a copy where it lies in blocks."""
        a = self.a[layer, pages]
        return unblocked_a(a) if self.in_blocks else a

    def b_of(self, layer: int, pages: PageIds) -> torch.Tensor:
        """B of some pages, [*pages, page_size, N]; a copy where it lies in blocks."""
        b = self.b[layer, pages]
        if not self.in_blocks:
            return b
        widths = zip(self.b_offsets, self.spec.slices, strict=False)
        return torch.cat([unblocked_b(b)[..., begin : begin + width] for begin, width in widths], dim=-1)

    def a_columns(self, layer: int, pages: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """One column of the first slice of A for each entry of `columns` [T], of pages [T, p]: [T, p, page_size]."""
        ranks, column = torch.arange(self.page_size, device=pages.device), columns.long()[:, None, None]
        a, page = self.a[layer, :, 0], pages[:, :, None]
        if self.in_blocks:
            inside = column % A_BLOCK
            if a.dtype == torch.bfloat16:
                half = inside % WOVEN // (WOVEN // 2)
                inside = inside // WOVEN * WOVEN + inside % (WOVEN // 2) * 2 + half
            return a[page, ranks // UNIT, column // A_BLOCK, ranks % UNIT, inside]
        return a[page, ranks, column]

    def zero(self, pages: Sequence[int]) -> None:
        """Zero these pages in every layer."""
        for first, end in runs(pages):
            for tensor in (self.a, self.b, self.rank_scales):
                if tensor is not None:
                    _zero(tensor[:, first:end])

    def give_back(self, pages: Sequence[int]) -> None:
        """Return the memory of these pages, which nobody uses, to the system."""
        for tensor in (self.a, self.b, self.rank_scales):
            if tensor is None:
                continue
            page, size = tensor.stride(1) * tensor.element_size(), tensor.element_size()
            # Pages outside: one stretch for all layers. Layers outside: one for each.
            together = tensor.stride(1) > tensor.stride(0)
            for first, end in runs(pages):
                for layer in range(1 if together else self.num_layers):
                    address = tensor.data_ptr() + layer * tensor.stride(0) * size + first * page
                    give_back(address, (end - first) * page)


def allocate_site(
    spec: PoolSpec,
    site: SiteSpec,
    pages: int,
    live: torch.Tensor,
    live_host: list[list[int]],
    dtype: torch.dtype,
    device: torch.device,
    *,
    in_blocks: bool = False,
) -> SiteStorage:
    """Zeroed storage of one site with `pages` pages (the null page included); `live` is the pool's, for this site.

    in_blocks: as the C library reads it; Triton's kernels want rows, and all pages of a layer in one stretch
    """
    layers, slices, size = spec.layers_of(site), len(site.slices), spec.page_size
    padded_k, n = _rounded_up(site.in_features, K_ALIGN), sum(_b_widths(site, in_blocks=in_blocks))
    a_page: tuple[int, ...] = (slices, size, padded_k)
    b_page: tuple[int, ...] = (size, n)
    if in_blocks:
        a_page = (slices, size // UNIT, padded_k // A_BLOCK, UNIT, A_BLOCK)
        b_page = (size // UNIT, n // B_BLOCK, UNIT, B_BLOCK)
    return SiteStorage(
        site,
        _paged(layers, pages, a_page, dtype, device, together=in_blocks),
        _paged(layers, pages, b_page, dtype, device, together=in_blocks),
        live,
        live_host,
        tuple(_running_sum(site.slices)),
        size,
        in_blocks,
        lazy_zeros((layers, pages, slices, size), torch.float32, device) if dtype.itemsize == 1 else None,
    )


def _rounded_up(value: int, to: int) -> int:
    return -(-value // to) * to


def _b_widths(site: SiteSpec, *, in_blocks: bool) -> list[int]:
    """Columns of b that each slice takes."""
    return [_rounded_up(width, B_BLOCK) if in_blocks else width for width in site.slices]


def _running_sum(widths: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(widths)]


def unblocked_a(blocks: torch.Tensor) -> torch.Tensor:
    """A in blocks, [..., units, blocks, ranks, columns], as [..., all ranks, all columns]."""
    if blocks.dtype == torch.bfloat16:
        blocks = blocks.unflatten(-1, (-1, WOVEN // 2, 2)).transpose(-1, -2).flatten(-3)
    return _in_rows(blocks)


def unblocked_b(blocks: torch.Tensor) -> torch.Tensor:
    """The same of B."""
    if blocks.dtype in PAIRED:
        pairs = blocks.flatten(-2).unflatten(-1, (UNIT // 2, B_BLOCK, 2))
        blocks = pairs.transpose(-1, -2).flatten(-3, -2)
    return _in_rows(blocks)


def _in_rows(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.transpose(-3, -2).flatten(-2).flatten(-3, -2)


def _paged(
    layers: int, pages: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, together: bool
) -> torch.Tensor:
    """[layers, pages, *shape], zeroed. together: all layers of a page in one stretch."""
    if not together:
        return lazy_zeros((layers, pages, *shape), dtype, device)
    return lazy_zeros((pages, layers, *shape), dtype, device).transpose(0, 1)


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on a CPU the system provides a page of memory only when it is first written.

    torch.zeros writes them all: a pool of 1 GiB took 0.5 s and all its memory at start.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # 16 adapters of rank 16 are 40,000 pages of 4 KiB: finding them took a fifth of the kernels' time.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def give_back(address: int, length: int) -> None:
    """Return whole system pages within private anonymous memory (`lazy_zeros` on a CPU); they read as zeros after."""
    begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + length) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > begin and hasattr(mmap, "MADV_DONTNEED"):
        # Python's own madvise belongs to the mapping object, which torch holds out of reach.
        _c_library().madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


@functools.cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _zero(pages: torch.Tensor) -> None:
    """`zero_`, but on a CPU by this thread alone: torch would share 10 MB among threads that first have to get a core,
    where those of a step have them all."""
    whole = pages.transpose(0, 1)
    if pages.is_cpu and whole.is_contiguous():
        ctypes.memset(whole.data_ptr(), 0, whole.nbytes)
    else:
        pages.zero_()


def runs(pages: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Adjacent ascending pages as (first, end): a slice needs no index tensor, so no copy to a device."""
    first = end = -1
    for page in pages:
        if page != end:
            if end > first:
                yield first, end
            first = page
        end = page + 1
    if end > first:
        yield first, end
