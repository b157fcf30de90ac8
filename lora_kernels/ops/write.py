"""First write: y begins as ΔW x, and the base GEMM adds to it."""

from __future__ import annotations

import torch

from lora_kernels.metadata import BatchMetadata
from lora_kernels.ops.apply import check_rows, find_site, lora_apply
from lora_kernels.ops.backend import FirstWriteBackend


def lora_write(y: torch.Tensor, x: torch.Tensor, site: str, layer: int, meta: BatchMetadata) -> torch.Tensor:
    """y[i] = scale · (x[i] Aᵀ) Bᵀ, and 0 in rows with slot -1: for y that has not been computed yet. Returns y.

    In prefill `lora_apply` costs the reading and writing of all of y. Here it is written once, unread, and
    `torch.addmm(y, x, weight.T, out=y)` accumulates the base layer onto it at no further traffic (beta = 1).
    y, x and errors as for `lora_apply`.
    """
    storage = find_site(meta, site, layer)
    check_rows("y", y, meta, storage.spec.out_features)
    check_rows("x", x, meta, storage.spec.in_features)
    backend = meta.pool.backend
    if not meta.segments or not isinstance(backend, FirstWriteBackend):
        return lora_apply(y.zero_(), x, site, layer, meta)
    meta.wait_for_layer(layer)
    backend.write(y, x, storage, layer, meta)
    return y
