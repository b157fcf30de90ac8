"""The C library as a backend: checked tensors in, addresses out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lora_kernels.cpu.library import CBatch, CSite, Library, load_library, pack_call, pack_matrix
from lora_kernels.errors import BackendError
from lora_kernels.ops import torch_path
from lora_kernels.storage import PAIRED

if TYPE_CHECKING:
    from lora_kernels.metadata import BatchMetadata
    from lora_kernels.pool import AdapterPool, SiteStorage

# LK_F32 and so on of sgmv.h: of activations, and of weights
ROW_CODES = {torch.float32: 0, torch.bfloat16: 1}
WEIGHT_CODES = {**ROW_CODES, torch.int8: 2}
NEEDS_UNITS = False
IN_BLOCKS = True


@dataclass(frozen=True, eq=False)
class _SiteHandle:
    """A site of one layer as C sees it, with what its pointers lead to."""

    struct: CSite
    address: int
    arrays: Sequence[ctypes.Array[ctypes.c_int64]]


@dataclass(frozen=True, eq=False)
class _BatchHandle:
    """The rows of a batch as C sees them; the arrays are the metadata's."""

    struct: CBatch
    address: int


def apply(y: torch.Tensor, x: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata) -> None:
    """y [T, N] += scale · (x [T, K] Aᵀ) Bᵀ, summed in float32, rounded once. Raises ShapeError (overlapping rows)."""
    if torch.compiler.is_compiling():
        pool = meta.pool
        torch.ops.lora_kernels.sgmv_(
            y, x, storage.a[layer], storage.b[layer], pool.page_table, pool.page_ranks, pool.page_scales,
            storage.live[layer], meta.row_order, meta.segment_starts, meta.segment_slots, storage.offsets,
            storage.b_offsets, None if storage.rank_scales is None else storage.rank_scales[layer],
        )  # fmt: skip
    elif x.dtype in ROW_CODES and y.dtype in ROW_CODES:
        _apply_at(y, x, site_handle(storage, layer, meta.pool).address, batch_address(meta))
    else:
        torch_path.apply(y, x, storage, layer, meta)


def shrink(x: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata, v: torch.Tensor) -> None:
    """v float32 [slices, T, R] = scale · x Aᵀ, written where a row has ranks."""
    if x.dtype not in ROW_CODES or v.stride(2) != 1:
        torch_path.shrink(x, storage, layer, meta, v)
        return
    x = _with_adjacent_columns(x)
    _finish(
        library().shrink(
            site_handle(storage, layer, meta.pool).address, batch_address(meta),
            x.data_ptr(), x.stride(0), ROW_CODES[x.dtype],
            v.data_ptr(), v.stride(1), v.stride(0), torch.get_num_threads(),
        )
    )  # fmt: skip


def expand(v: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata, y: torch.Tensor) -> None:
    """y [T, N] += v Bᵀ, slice by slice."""
    if y.dtype not in ROW_CODES or y.stride(1) != 1 or v.stride(2) != 1:
        torch_path.expand(v, storage, layer, meta, y)
        return
    torch_path.check_rows_apart(y)
    _finish(
        library().expand(
            site_handle(storage, layer, meta.pool).address, batch_address(meta),
            y.data_ptr(), y.stride(0), ROW_CODES[y.dtype],
            v.data_ptr(), v.stride(1), v.stride(0), torch.get_num_threads(),
        )
    )  # fmt: skip


def copy(into: torch.Tensor, layers: Sequence[int], weights: Sequence[torch.Tensor], *, turned: bool = False) -> None:
    """into[layers[i]] = weights[i], as a lies, or its transpose, as b does, in one call.

    into: [layers, units, blocks, 8, columns]
    """
    first = weights[0]
    alike = all(w.dtype == first.dtype and w.stride() == first.stride() and w.is_cpu for w in weights)
    if not alike or first.dtype not in WEIGHT_CODES:
        weights = [w.detach().to("cpu", into.dtype).contiguous() for w in weights]
        first = weights[0]
    shape, strides = (reversed(first.shape), reversed(first.stride())) if turned else (first.shape, first.stride())
    matrix = pack_matrix(
        *shape, *strides, into.stride(1), into.shape[-1], WEIGHT_CODES[first.dtype], WEIGHT_CODES[into.dtype],
        turned and into.dtype in PAIRED,
    )  # fmt: skip
    begin, step = into.data_ptr(), into.stride(0) * into.itemsize
    addresses = ctypes.c_void_p * len(weights)
    source, target = (w.data_ptr() for w in weights), (begin + layer * step for layer in layers)
    library().copy(matrix, addresses(*source), addresses(*target), len(weights))


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
    status = library().apply(
        pack_call(
            site, batch, y.data_ptr(), y_stride, ROW_CODES[y.dtype], x.data_ptr(), x_stride, ROW_CODES[x.dtype],
            torch.get_num_threads(),
        )
    )  # fmt: skip
    _finish(status)


def site_handle(storage: SiteStorage, layer: int, pool: AdapterPool) -> _SiteHandle:
    """The site of one layer for C; lives as long as the pool's storage."""
    handle = storage.cache.get(layer)
    if not isinstance(handle, _SiteHandle):
        handle = _describe_site(
            storage.a[layer], storage.b[layer], pool.page_table, pool.page_ranks, pool.page_scales,
            storage.live[layer], storage.spec.in_features, storage.offsets, storage.b_offsets,
            None if storage.rank_scales is None else storage.rank_scales[layer],
        )  # fmt: skip
        storage.cache[layer] = handle
    return handle


def _describe_site(
    a: torch.Tensor,
    b: torch.Tensor,
    page_table: torch.Tensor,
    page_ranks: torch.Tensor,
    page_scales: torch.Tensor,
    live: torch.Tensor,
    k: int,
    offsets: Sequence[int],
    b_offsets: Sequence[int],
    rank_scales: torch.Tensor | None,
) -> _SiteHandle:
    """Addresses stay valid as long as the pool's tensors live.

    a: [pages, slices, units, blocks, 8, 32]; b: [pages, units, blocks, 8, 64]; rank_scales: float32 [pages, slices,
    page_size], adjacent, or None
    """
    arrays = [(ctypes.c_int64 * len(values))(*values) for values in (offsets, b_offsets)]
    _, slices, units, a_blocks, unit, width = a.shape
    struct = CSite(
        a.data_ptr(), b.data_ptr(), page_table.data_ptr(), page_ranks.data_ptr(), page_scales.data_ptr(),
        live.data_ptr(), *map(ctypes.addressof, arrays), None if rank_scales is None else rank_scales.data_ptr(),
        k, a_blocks * width, offsets[-1], b_offsets[-1], slices, units * unit, page_table.shape[1],
        a.stride(0), b.stride(0), WEIGHT_CODES[a.dtype],
    )  # fmt: skip
    return _SiteHandle(struct, ctypes.addressof(struct), arrays)


def _describe_batch(row_order: torch.Tensor, segment_starts: torch.Tensor, segment_slots: torch.Tensor) -> CBatch:
    return CBatch(row_order.data_ptr(), segment_starts.data_ptr(), segment_slots.data_ptr(), len(segment_slots))


def batch_address(meta: BatchMetadata) -> int:
    """The batch for C; lives as long as `meta`."""
    handle = meta.cache.get("c")
    if not isinstance(handle, _BatchHandle):
        struct = _describe_batch(meta.row_order, meta.segment_starts, meta.segment_slots)
        handle = _BatchHandle(struct, ctypes.addressof(struct))
        meta.cache["c"] = handle
    return handle.address


def library() -> Library:
    """The loaded library. Raises BackendError where there is none."""
    loaded = load_library()
    if loaded is None:
        raise BackendError("the CPU library is not available")
    return loaded


def _with_adjacent_columns(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(1) == 1 else x.contiguous()


def _finish(status: int) -> None:
    if status:
        raise MemoryError("the CPU kernels could not allocate their scratch")


def _sgmv(
    y: torch.Tensor,
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    page_table: torch.Tensor,
    page_ranks: torch.Tensor,
    page_scales: torch.Tensor,
    live: torch.Tensor,
    row_order: torch.Tensor,
    segment_starts: torch.Tensor,
    segment_slots: torch.Tensor,
    offsets: list[int],
    b_offsets: list[int],
    rank_scales: torch.Tensor | None,
) -> None:
    if not len(segment_slots):
        return
    site = _describe_site(a, b, page_table, page_ranks, page_scales, live, x.shape[1], offsets, b_offsets, rank_scales)
    batch = _describe_batch(row_order, segment_starts, segment_slots)
    _apply_at(y, x, site.address, ctypes.addressof(batch))


def _sgmv_fake(y: torch.Tensor, x: torch.Tensor, *rest: object) -> None:
    """Shapes under tracing: y is changed in place, nothing is returned."""


# For torch.compile, which cannot see through ctypes. Eager calls skip it: the dispatcher costs more than a small batch.
_ops = torch.library.Library("lora_kernels", "DEF")
_ops.define(
    "sgmv_(Tensor(a!) y, Tensor x, Tensor a, Tensor b, Tensor page_table, Tensor page_ranks, Tensor page_scales, "
    "Tensor live, Tensor row_order, Tensor segment_starts, Tensor segment_slots, int[] offsets, int[] b_offsets, "
    "Tensor? rank_scales) -> ()"
)
_ops.impl("sgmv_", _sgmv, "CPU")
torch.library.register_fake("lora_kernels::sgmv_", _sgmv_fake, lib=_ops)
