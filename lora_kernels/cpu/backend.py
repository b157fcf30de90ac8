"""The C library as a backend: checked tensors in, addresses out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from lora_kernels.batch import Batch
from lora_kernels.cpu.library import CBatch, CSite, Library, load_library, pack_call, pack_matrix
from lora_kernels.errors import BackendError
from lora_kernels.ops import torch_path
from lora_kernels.storage.blocks import PAIRED
from lora_kernels.storage.site import SiteStorage

# LK_F32 and so on of sgmv.h: of activations, and of weights
ROW_CODES = {torch.float32: 0, torch.bfloat16: 1}
WEIGHT_CODES = {**ROW_CODES, torch.int8: 2}
NAME = "c"
NEEDS_UNITS = False
IN_BLOCKS = True


class SiteTensors(NamedTuple):
    """The tensors that C reads of one layer of a site.

    a: [pages, slices, units, blocks, 8, 32]; b: [pages, units, blocks, 8, 64]; page_table, page_ranks int32 and
    page_scales float32 [slots, max_pages]; live: int32 [slots]; rank_scales: float32 [pages, slices, page_size],
    adjacent, for 8-bit pages
    """

    a: torch.Tensor
    b: torch.Tensor
    page_table: torch.Tensor
    page_ranks: torch.Tensor
    page_scales: torch.Tensor
    live: torch.Tensor
    rank_scales: torch.Tensor | None = None

    @classmethod
    def of(cls, storage: SiteStorage, layer: int) -> SiteTensors:
        """Return one layer's tensors."""
        tables = storage.tables
        return cls(
            a=storage.a[layer],
            b=storage.b[layer],
            page_table=tables.page_table,
            page_ranks=tables.page_ranks,
            page_scales=tables.page_scales,
            live=storage.live[layer],
            rank_scales=None if storage.rank_scales is None else storage.rank_scales[layer],
        )


@dataclass(frozen=True, eq=False)
class _SiteHandle:
    """A site of one layer as C sees it, with what its pointers lead to."""

    struct: CSite
    address: int
    arrays: Sequence[ctypes.Array[ctypes.c_int64]]


@dataclass(frozen=True, eq=False)
class _BatchHandle:
    """The rows of a batch as C sees them; the arrays are the batch's."""

    struct: CBatch
    address: int


def apply(y: torch.Tensor, x: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch) -> None:
    """Compute y [T, N] += scale · (x [T, K] Aᵀ) Bᵀ, summed in float32, rounded once.

    Raises ShapeError (overlapping rows of y).
    """
    if torch.compiler.is_compiling():
        site = [tensor for tensor in SiteTensors.of(storage, layer) if tensor is not None]
        rows = [batch.row_order, batch.segment_starts, batch.segment_slots]
        torch.ops.lora_kernels.sgmv_(y, x, site, storage.offsets, storage.b_offsets, rows)
    elif x.dtype in ROW_CODES and y.dtype in ROW_CODES:
        _apply_at(y, x, site_handle(storage, layer).address, batch_address(batch))
    else:
        torch_path.apply(y, x, storage, layer, batch)


def write(y: torch.Tensor, x: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch) -> None:
    """Compute y [T, N] = scale · (x Aᵀ) Bᵀ, and 0 in rows without an adapter."""
    apply(y.zero_(), x, storage, layer, batch)


def shrink(x: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch, v: torch.Tensor) -> None:
    """Compute v float32 [slices, T, R] = scale · x Aᵀ, written where a row has ranks."""
    if x.dtype not in ROW_CODES or v.stride(2) != 1:
        torch_path.shrink(x, storage, layer, batch, v)
        return
    x = x if x.stride(1) == 1 else x.contiguous()
    _finish(library().shrink(site_handle(storage, layer).address, batch_address(batch), *_half_arguments(x, v)))


def expand(v: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch, y: torch.Tensor) -> None:
    """Compute y [T, N] += v Bᵀ, slice by slice."""
    if y.dtype not in ROW_CODES or y.stride(1) != 1 or v.stride(2) != 1:
        torch_path.expand(v, storage, layer, batch, y)
        return
    torch_path.check_rows_apart(y)
    _finish(library().expand(site_handle(storage, layer).address, batch_address(batch), *_half_arguments(y, v)))


def copy(into: torch.Tensor, layers: Sequence[int], weights: Sequence[torch.Tensor], *, turned: bool = False) -> None:
    """Set into[layers[i]] = weights[i], as a lies, or its transpose, as b does, in one call.

    into: [layers, units, blocks, 8, columns]
    """
    first = weights[0]
    alike = all(w.dtype == first.dtype and w.stride() == first.stride() and w.is_cpu for w in weights)
    if not alike or first.dtype not in WEIGHT_CODES:
        weights = [w.detach().to("cpu", into.dtype).contiguous() for w in weights]
        first = weights[0]
    shape, strides = (reversed(first.shape), reversed(first.stride())) if turned else (first.shape, first.stride())
    codes = (WEIGHT_CODES[first.dtype], WEIGHT_CODES[into.dtype])
    matrix = pack_matrix(*shape, *strides, into.stride(1), into.shape[-1], *codes, turned and into.dtype in PAIRED)
    begin = into.data_ptr()
    step = into.stride(0) * into.itemsize
    addresses = ctypes.c_void_p * len(weights)
    source = addresses(*(w.data_ptr() for w in weights))
    target = addresses(*(begin + layer * step for layer in layers))
    library().copy(matrix, source, target, len(weights))


def site_handle(storage: SiteStorage, layer: int) -> _SiteHandle:
    """Return the site of one layer for C; it lives as long as the pool's storage."""
    handle = storage.cache.get(layer)
    if not isinstance(handle, _SiteHandle):
        tensors = SiteTensors.of(storage, layer)
        handle = _describe_site(tensors, storage.spec.in_features, storage.offsets, storage.b_offsets)
        storage.cache[layer] = handle
    return handle


def batch_address(batch: Batch) -> int:
    """Return the address of the batch for C; it lives as long as `batch`."""
    handle = batch.cache.get("c")
    if not isinstance(handle, _BatchHandle):
        struct = _describe_batch(batch.row_order, batch.segment_starts, batch.segment_slots)
        handle = _BatchHandle(struct, ctypes.addressof(struct))
        batch.cache["c"] = handle
    return handle.address


def library() -> Library:
    """Return the loaded library. Raises BackendError where there is none."""
    loaded = load_library()
    if loaded is None:
        raise BackendError("the CPU library is not available")
    return loaded


def _apply_at(y: torch.Tensor, x: torch.Tensor, site: int, batch: int) -> None:
    y_stride, y_step = y.stride()
    x_stride, x_step = x.stride()
    if y_step != 1:
        adjacent = y.contiguous()
        _apply_at(adjacent, x, site, batch)
        y.copy_(adjacent)
        return
    if y_stride < y.shape[1]:
        torch_path.check_rows_apart(y)
    if x_step != 1:
        x = x.contiguous()
        x_stride = x.shape[1]
    of_y = (y.data_ptr(), y_stride, ROW_CODES[y.dtype])
    of_x = (x.data_ptr(), x_stride, ROW_CODES[x.dtype])
    _finish(library().apply(pack_call(site, batch, *of_y, *of_x, torch.get_num_threads())))


def _half_arguments(rows: torch.Tensor, v: torch.Tensor) -> tuple[int, ...]:
    """Return what lk_shrink and lk_expand take after site and batch: x or y, then v, then the threads."""
    of_rows = (rows.data_ptr(), rows.stride(0), ROW_CODES[rows.dtype])
    of_v = (v.data_ptr(), v.stride(1), v.stride(0))
    return (*of_rows, *of_v, torch.get_num_threads())


def _describe_site(tensors: SiteTensors, k: int, offsets: Sequence[int], b_offsets: Sequence[int]) -> _SiteHandle:
    """Return `lk_site`; its addresses stay valid as long as the tensors live."""
    arrays = [(ctypes.c_int64 * len(values))(*values) for values in (offsets, b_offsets)]
    _, slices, units, a_blocks, unit, width = tensors.a.shape
    struct = CSite(
        **{name: None if tensor is None else tensor.data_ptr() for name, tensor in tensors._asdict().items()},
        offsets=ctypes.addressof(arrays[0]),
        b_offsets=ctypes.addressof(arrays[1]),
        k=k,
        padded_k=a_blocks * width,
        n=offsets[-1],
        padded_n=b_offsets[-1],
        slices=slices,
        page_size=units * unit,
        max_pages=tensors.page_table.shape[1],
        a_page=tensors.a.stride(0),
        b_page=tensors.b.stride(0),
        dtype=WEIGHT_CODES[tensors.a.dtype],
    )
    return _SiteHandle(struct, ctypes.addressof(struct), arrays)


def _describe_batch(row_order: torch.Tensor, segment_starts: torch.Tensor, segment_slots: torch.Tensor) -> CBatch:
    return CBatch(row_order.data_ptr(), segment_starts.data_ptr(), segment_slots.data_ptr(), len(segment_slots))


def _finish(status: int) -> None:
    if status:
        raise MemoryError("the CPU kernels could not allocate their scratch")


def _sgmv(
    y: torch.Tensor,
    x: torch.Tensor,
    site: list[torch.Tensor],
    offsets: list[int],
    b_offsets: list[int],
    batch: list[torch.Tensor],
) -> None:
    """Apply; `site` is SiteTensors as a list, `batch` row_order, segment_starts and segment_slots."""
    if not len(batch[2]):
        return
    described = _describe_site(SiteTensors(*site), x.shape[1], offsets, b_offsets)
    rows = _describe_batch(*batch)
    _apply_at(y, x, described.address, ctypes.addressof(rows))


def _sgmv_fake(y: torch.Tensor, x: torch.Tensor, *rest: object) -> None:
    """Tell the tracer the shapes: y is changed in place, nothing is returned."""


# For torch.compile, which cannot see through ctypes. Eager calls skip it: the dispatcher costs more than a small batch.
_ops = torch.library.Library("lora_kernels", "DEF")
_ops.define("sgmv_(Tensor(a!) y, Tensor x, Tensor[] site, int[] offsets, int[] b_offsets, Tensor[] batch) -> ()")
_ops.impl("sgmv_", _sgmv, "CPU")
torch.library.register_fake("lora_kernels::sgmv_", _sgmv_fake, lib=_ops)
