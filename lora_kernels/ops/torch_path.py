"""The backend that runs everywhere: batched torch matmuls over pages, differentiable in x and y.

One group per distinct adapter, whose weights are used where they lie when its pages are adjacent (the allocator prefers
that). When several adapters have only a row or two each, a matmul per adapter is all launch overhead: then each row is
a group and the pages are gathered.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from lora_kernels.batch import Batch, Segment
from lora_kernels.errors import ShapeError
from lora_kernels.storage.site import SiteStorage

# A gather reads an adapter's pages once per row: past two rows each, one matmul per adapter reads less. Below three
# adapters the matmuls are too few to matter (576 -> 1536, rank 16, one row: 140 us against 240 us gathered).
GATHER_MAX_ROWS_PER_ADAPTER = 2
GATHER_MIN_ADAPTERS = 3
NAME = "torch"
NEEDS_UNITS = False
IN_BLOCKS = False


@dataclass(frozen=True, eq=False)
class _Group:
    """g sets of weights, each for m rows.

    a [g, pages, slices, page_size, K], b [g, ranks, N], scales [g, pages, 1, 1], or [g, pages, slices, page_size] where
    each rank has its own (8-bit pages, whose weights are widened to float32 here).
    """

    rows: torch.Tensor | slice
    a: torch.Tensor
    b: torch.Tensor
    scales: torch.Tensor


def apply(y: torch.Tensor, x: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch) -> None:
    """Compute y [T, N] += scale · (x [T, K] Aᵀ) Bᵀ for every row with an adapter.

    Matmuls run in the pool's dtype, or in float32 where the processor has no other.
    Raises ShapeError (overlapping rows of y).
    """
    check_rows_apart(y)
    for group in _groups(storage, layer, batch):
        _expand(_shrink(x, group), group, storage, y)


def write(y: torch.Tensor, x: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch) -> None:
    """Compute y [T, N] = scale · (x Aᵀ) Bᵀ, and 0 in rows without an adapter."""
    apply(y.zero_(), x, storage, layer, batch)


def shrink(x: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch, v: torch.Tensor) -> None:
    """Compute v [slices, T, ≥ max ranks] = scale · x Aᵀ, written where a row has ranks."""
    for group in _groups(storage, layer, batch):
        ranks = group.b.shape[1]
        v[:, group.rows, :ranks] = _shrink(x, group).to(v.dtype)


def expand(v: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch, y: torch.Tensor) -> None:
    """Compute y [T, N] += v Bᵀ, slice by slice. Raises ShapeError (overlapping rows of y)."""
    check_rows_apart(y)
    for group in _groups(storage, layer, batch):
        ranks = group.b.shape[1]
        # A row of a gathered group may have fewer ranks than the group: what lies beyond them in v was never written.
        live = (group.scales != 0).flatten(2).any(2).repeat_interleave(ranks // group.scales.shape[1], dim=1)
        part = v[:, group.rows, :ranks]
        _expand(torch.where(live, part, 0.0), group, storage, y)


def copy(into: torch.Tensor, layers: Sequence[int], weights: Sequence[torch.Tensor], *, turned: bool = False) -> None:
    """Set into[layers[i]] = weights[i], or its transpose, in one call.

    210 matrices copied one by one hold the GIL for most of the time they take.
    """
    ranks, columns = reversed(weights[0].shape) if turned else weights[0].shape
    into = into[:, :ranks, :columns]
    by_layer = (into.transpose(1, 2) if turned else into).unbind(0)
    torch._foreach_copy_([by_layer[layer] for layer in layers], list(weights))


def _groups(storage: SiteStorage, layer: int, batch: Batch) -> Iterator[_Group]:
    most_rows = max(segment.rows for segment in batch.segments)
    if most_rows <= GATHER_MAX_ROWS_PER_ADAPTER and len(batch.segments) >= GATHER_MIN_ADAPTERS:
        yield from _gathered(storage, layer, batch)
        return
    first = 0
    for segment in batch.segments:
        count = storage.live_host[layer][segment.slot]
        if count:
            yield _segment_group(storage, layer, batch, segment, count, first)
        first += segment.rows


def _segment_group(storage: SiteStorage, layer: int, batch: Batch, segment: Segment, count: int, first: int) -> _Group:
    """The group of one adapter, whose rows begin at `first` in the batch's row_order."""
    listing = storage.tables.listing(segment.slot)
    assert listing is not None, "a batch lists loaded slots alone"
    pages = listing.pages[:count]
    adjacent = pages == tuple(range(pages[0], pages[0] + count))
    where = slice(pages[0], pages[0] + count) if adjacent else list(pages)
    a, b = _wide(storage.a_of(layer, where)), _wide(storage.b_of(layer, where))
    scales = storage.tables.page_scales[segment.slot, :count, None, None]
    if storage.rank_scales is not None:
        scales = scales * storage.rank_scales[layer, where]
    rows: torch.Tensor | slice = batch.row_order[first : first + segment.rows].long()
    if segment.first >= 0:
        rows = slice(segment.first, segment.first + segment.rows)
    return _Group(
        rows,
        a[None, ..., : storage.spec.in_features],
        b.reshape(1, -1, b.shape[-1]),
        scales[None],
    )


def _wide(weights: torch.Tensor) -> torch.Tensor:
    """Weights as matmuls take them."""
    emulated = weights.itemsize == 2 and weights.device.type == "cpu" and _emulates_half()
    return weights.float() if weights.itemsize == 1 or emulated else weights


@functools.cache
def _emulates_half() -> bool:
    """Whether torch multiplies 16-bit types value by value on this CPU: 0.9 against 158 GFLOP/s on two Zen 3 cores."""
    return torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")


def check_rows_apart(y: torch.Tensor) -> None:
    """Raise ShapeError where elements of y share memory: what one row adds would change another."""
    # Walking the longer stride must step over all that the shorter one covers.
    (short, count), (long, _) = sorted(zip(y.stride(), y.shape, strict=True))
    if y.numel() > 1 and (long <= short * (count - 1) or (short == 0 and count > 1)):
        raise ShapeError(f"y: rows overlap (strides {y.stride()}, shape {tuple(y.shape)})")


def _gathered(storage: SiteStorage, layer: int, batch: Batch) -> Iterator[_Group]:
    """All rows in one group. Pages a row does not have are the pool's zero page."""
    tables = storage.tables
    count = max(storage.live_host[layer][segment.slot] for segment in batch.segments)
    if not count:
        return
    rows = batch.row_order.long()
    slots = batch.row_slots[rows].long()
    live = torch.arange(count, device=rows.device) < storage.live[layer, slots, None]
    pages = torch.where(live, tables.page_table[slots, :count], storage.null_page)
    b = _wide(storage.b_of(layer, pages))
    scales = torch.where(live, tables.page_scales[slots, :count], 0.0)[:, :, None, None]
    if storage.rank_scales is not None:
        scales = scales * storage.rank_scales[layer, pages]
    yield _Group(
        rows,
        _wide(storage.a_of(layer, pages))[..., : storage.spec.in_features],
        b.view(len(rows), -1, b.shape[-1]),
        scales,
    )


def _shrink(x: torch.Tensor, group: _Group) -> torch.Tensor:
    """Scaled v of the group's rows, [slices, rows, ranks], in the weights' dtype."""
    sets, pages, slices, size, k = group.a.shape
    rows = x[group.rows].to(group.a.dtype).view(sets, -1, k)
    v = rows @ group.a.reshape(sets, -1, k).transpose(1, 2)
    v = v.view(sets, -1, pages, slices, size) * group.scales[:, None]
    return v.permute(3, 0, 1, 2, 4).reshape(slices, -1, pages * size)


def _expand(v: torch.Tensor, group: _Group, storage: SiteStorage, y: torch.Tensor) -> None:
    sets, ranks, _ = group.b.shape
    bounds = zip(storage.offsets, storage.offsets[1:], strict=False)
    deltas = [
        v[s].to(group.b.dtype).view(sets, -1, ranks) @ group.b[..., begin:end] for s, (begin, end) in enumerate(bounds)
    ]
    delta = torch.cat(deltas, dim=-1).flatten(0, 1).to(y.dtype)
    if isinstance(group.rows, slice):
        y[group.rows] += delta
    else:
        y.index_add_(0, group.rows, delta)
