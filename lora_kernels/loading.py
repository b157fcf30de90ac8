"""From an adapter's tensors to something a pool can write without a further check. No pool is touched here."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import torch

from lora_kernels.errors import DtypeError, NonFiniteError, RankError, ShapeError, TargetError
from lora_kernels.spec import AdapterTensors, LoraPair, PoolSpec, SiteSpec, Target

WEIGHT_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, eq=False)
class PreparedAdapter:
    """One adapter in the pool's dtype: every shape checked, every value finite.

    `scale` is the factor all its pages share; a target with another scale had the quotient folded into its b.
    `rank` is the largest rank of any target.
    """

    pairs: dict[Target, tuple[torch.Tensor, torch.Tensor]]
    scale: float
    rank: int


def adapter_rank(spec: PoolSpec, tensors: AdapterTensors) -> int:
    """Largest rank of any target (0 for an adapter that touches nothing), every target's shapes checked.

    Raises TargetError, ShapeError, RankError or DtypeError.
    """
    sites = {site.name: site for site in spec.sites}
    rank = 0
    for key, pair in tensors.items():
        rank = max(rank, _checked_rank(spec, sites, Target(*key), pair))
    return rank


def prepare_adapter(
    spec: PoolSpec, tensors: AdapterTensors, *, dtype: torch.dtype, device: torch.device
) -> PreparedAdapter:
    """Check an adapter against `spec` and convert it to `dtype` on `device`.

    Raises TargetError, ShapeError, RankError, DtypeError, or NonFiniteError (a NaN or infinite weight or scale, or one
    that overflows `dtype`).
    """
    rank = adapter_rank(spec, tensors)
    for key, pair in tensors.items():
        if not math.isfinite(pair.scale):
            raise NonFiniteError(f"{Target(*key)}: scale is {pair.scale}")
    scale = _common_scale(tensors)
    pairs = {}
    for key, pair in tensors.items():
        target = Target(*key)
        a = pair.a.detach().to(device=device, dtype=dtype)
        # Folding in float32 rounds b once; where the scales agree b is stored as it came.
        b = pair.b.detach().to(device=device)
        b = (b if pair.scale == scale else b.float() * (pair.scale / scale)).to(dtype)
        if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
            raise NonFiniteError(f"{target}: weights are not finite in {dtype}")
        pairs[target] = (a, b)
    return PreparedAdapter(pairs, scale, rank)


def _checked_rank(spec: PoolSpec, sites: dict[str, SiteSpec], target: Target, pair: LoraPair) -> int:
    site = sites.get(target.site)
    if site is None:
        raise TargetError(f"unknown site {target.site!r}; the pool has {sorted(sites)}")
    if not 0 <= target.layer < spec.layers_of(site):
        raise TargetError(f"{target}: layer out of range, the site has {spec.layers_of(site)} layers")
    if not 0 <= target.slice_index < len(site.slices):
        raise TargetError(f"{target}: slice out of range, the site has {len(site.slices)} slices")
    if pair.a.dim() != 2 or pair.b.dim() != 2:
        raise ShapeError(f"{target}: a and b must be matrices, got {tuple(pair.a.shape)} and {tuple(pair.b.shape)}")
    rank, expected_b = pair.a.shape[0], (site.slices[target.slice_index], pair.a.shape[0])
    if pair.a.shape[1] != site.in_features or tuple(pair.b.shape) != expected_b:
        raise ShapeError(
            f"{target}: expected a [r, {site.in_features}] and b [{expected_b[0]}, r], "
            f"got {tuple(pair.a.shape)} and {tuple(pair.b.shape)}"
        )
    if not 1 <= rank <= spec.max_rank:
        raise RankError(f"{target}: rank {rank} is outside 1..{spec.max_rank}")
    for tensor in (pair.a, pair.b):
        if tensor.dtype not in WEIGHT_DTYPES:
            raise DtypeError(f"{target}: weights must be floating point, got {tensor.dtype}")
    return rank


def _common_scale(tensors: AdapterTensors) -> float:
    """The most frequent non-zero scale: it costs no rounding where it is the only one, as in most adapters."""
    counts = Counter(float(pair.scale) for pair in tensors.values() if pair.scale != 0.0)
    return counts.most_common(1)[0][0] if counts else 1.0
