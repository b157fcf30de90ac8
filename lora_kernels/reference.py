"""The truth in tests: plain torch in float32, one adapter at a time, on any device. See the operations' own files."""

from __future__ import annotations

import torch

from lora_kernels.metadata import BatchMetadata
from lora_kernels.ops import expand, shrink


def lora_shrink(x: torch.Tensor, site: str, layer: int, meta: BatchMetadata) -> torch.Tensor:
    """Return v[s, i] = scale · x[i] A_sᵀ, float32 [slices, T, max_pages · page_size]; see `ops.shrink.reference`."""
    return shrink.reference(x, meta.pool.site(site), layer, meta)


def lora_apply(y: torch.Tensor, x: torch.Tensor, site: str, layer: int, meta: BatchMetadata) -> torch.Tensor:
    """Compute y[i] += scale · (x[i] Aᵀ) Bᵀ in place, each row summed in float32 and rounded once. Returns y.

    y [T, N] and x [T, K] of any floating dtype; rows with slot -1 are not written.
    """
    storage = meta.pool.site(site)
    return expand.reference(shrink.reference(x, storage, layer, meta), storage, layer, meta, y)
