"""The operations a model calls: checks first, then the pool's backend."""

from __future__ import annotations

import torch

from lora_kernels.errors import DeviceError, DtypeError, ExtrasError, ShapeError, TargetError
from lora_kernels.metadata import BatchMetadata
from lora_kernels.ops import torch_path
from lora_kernels.storage.site import SiteStorage

ACTIVATION_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def lora_apply(y: torch.Tensor, x: torch.Tensor, site: str, layer: int, meta: BatchMetadata) -> torch.Tensor:
    """Compute y[i] += scale · (x[i] Aᵀ) Bᵀ in place, each row with its own adapter; rows with slot -1 keep their bits.

    Where a row's adapter has extras at this site, y[i] is then multiplied by its scales, and its biases are added: y is
    W x on entry, without the base's own bias.

    y: [T, N], N the sum of the site's slices; rows may be strided (a column range of a wider tensor)
    x: [T, K], rows may be strided
    Both float32, bfloat16 or float16 on the pool's device, where T is `meta.rows`. Returns y.
    Multi-LoRA batching as in Punica (arXiv 2310.18547) and S-LoRA (arXiv 2311.03285), over pages of ranks.
    Raises TargetError, ShapeError, DtypeError or DeviceError before anything is written.
    """
    storage = find_site(meta, site, layer)
    check_rows("y", y, meta, storage.offsets[-1])
    check_rows("x", x, meta, storage.spec.in_features)
    if meta.has_adapters:
        meta.wait_for_layer(layer)
        backend = torch_path if torch.is_grad_enabled() and (x.requires_grad or y.requires_grad) else meta.pool.backend
        backend.apply(y, x, storage, layer, meta)
        if meta.extras is not None:
            meta.extras.finish(y, site, layer)
    return y


def lora_write(y: torch.Tensor, x: torch.Tensor, site: str, layer: int, meta: BatchMetadata) -> torch.Tensor:
    """Compute y[i] = scale · (x[i] Aᵀ) Bᵀ, and 0 in rows with slot -1: for y that has not been computed yet. Returns y.

    In prefill `lora_apply` costs the reading and writing of all of y. Here it is written once, unread, and
    `torch.addmm(y, x, weight.T, out=y)` accumulates the base layer onto it at no further traffic (beta = 1).
    y, x and errors as for `lora_apply`; ExtrasError where rows have extras, whose scales are on the base's product too.
    """
    if meta.extras is not None:
        raise ExtrasError("rows with extras cannot be written first: use lora_apply")
    storage = find_site(meta, site, layer)
    check_rows("y", y, meta, storage.offsets[-1])
    check_rows("x", x, meta, storage.spec.in_features)
    if not meta.has_adapters:
        return y.zero_()
    meta.wait_for_layer(layer)
    meta.pool.backend.write(y, x, storage, layer, meta)
    return y


def lora_shrink(x: torch.Tensor, site: str, layer: int, meta: BatchMetadata, v: torch.Tensor) -> torch.Tensor:
    """Compute v[s, i, :r] = scale · x[i] A_sᵀ for every slice s of the site: the first half of `lora_apply`.

    x: [T, K]; v: float32 [slices, T, R] with R at least `meta.max_pages * page_size`. Rows without an adapter, and
    ranks a row's adapter does not have, are not written. Returns v. Raises as `lora_apply` does.
    """
    storage = find_site(meta, site, layer)
    check_rows("x", x, meta, storage.spec.in_features)
    _check_v(v, meta, storage)
    if meta.has_adapters:
        meta.wait_for_layer(layer)
        meta.pool.backend.shrink(x, storage, layer, meta, v)
    return v


def lora_expand(v: torch.Tensor, site: str, layer: int, meta: BatchMetadata, y: torch.Tensor) -> torch.Tensor:
    """Compute y[i] += v[s, i] B_sᵀ in place, v as `lora_shrink` leaves it: the second half of `lora_apply`.

    Returns y. Raises as `lora_apply` does.
    """
    storage = find_site(meta, site, layer)
    check_rows("y", y, meta, storage.spec.out_features)
    _check_v(v, meta, storage)
    if meta.has_adapters:
        meta.wait_for_layer(layer)
        meta.pool.backend.expand(v, storage, layer, meta, y)
    return y


def find_site(meta: BatchMetadata, name: str, layer: int) -> SiteStorage:
    """Return the site's storage. Raises TargetError when the pool has no such site or layer."""
    storage = meta.pool.site(name)
    if not 0 <= layer < storage.num_layers:
        raise TargetError(f"site {name!r} has {storage.num_layers} layers, got layer {layer}")
    return storage


def check_rows(name: str, tensor: torch.Tensor, meta: BatchMetadata, width: int) -> None:
    """Raise ShapeError, DtypeError or DeviceError unless `tensor` is activations [T, width] of the batch."""
    if tensor.shape != (meta.rows, width):
        raise ShapeError(f"{name}: expected [{meta.rows}, {width}], got {tuple(tensor.shape)}")
    if tensor.dtype not in ACTIVATION_DTYPES:
        raise DtypeError(f"{name}: expected a floating dtype of at most 32 bits, got {tensor.dtype}")
    # Comparing devices costs a sixth of comparing their types, and this runs for every site of every layer.
    if tensor.device != meta.pool.device and tensor.device.type != meta.pool.device.type:
        raise DeviceError(f"{name} is on {tensor.device}, the pool on {meta.pool.device}")


def _check_v(v: torch.Tensor, meta: BatchMetadata, storage: SiteStorage) -> None:
    ranks = meta.max_pages * meta.pool.spec.page_size
    if v.dim() != 3 or v.shape[:2] != (len(storage.spec.slices), meta.rows) or v.shape[2] < ranks:
        raise ShapeError(
            f"v: expected [{len(storage.spec.slices)}, {meta.rows}, at least {ranks}], got {tuple(v.shape)}"
        )
    if v.dtype != torch.float32:
        raise DtypeError(f"v: expected float32, got {v.dtype}")
    if v.device.type != meta.pool.device.type:
        raise DeviceError(f"v is on {v.device}, the pool on {meta.pool.device}")
