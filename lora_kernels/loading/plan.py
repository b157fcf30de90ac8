"""An adapter's tensors, checked: a plan can be written into pages without a further check. No page is touched."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from lora_kernels.errors import DeviceError, DtypeError, NonFiniteError, RankError, ShapeError, TargetError
from lora_kernels.spec import AdapterTensors, LoraPair, PoolSpec, SiteSpec, Target

WEIGHT_DTYPES = frozenset((torch.float32, torch.bfloat16, torch.float16, torch.float64))
# One adapter, or the parts of a blend with their weights.
Loadable = AdapterTensors | Sequence[tuple[AdapterTensors, float]]


@dataclass(frozen=True, eq=False)
class Group:
    """The pairs of one site, slice and rank, one per layer: they are copied together.

    a: [rank, K] per layer; b: [width, rank] per layer; factors: what each b is multiplied by before it is stored.
    """

    site: str
    slice_index: int
    rank: int
    layers: list[int]
    a: list[torch.Tensor]
    b: list[torch.Tensor]
    factors: list[float]

    def folded_b(self) -> list[torch.Tensor]:
        """b times its factor. Folding in float32 rounds once; where the factor is 1, b is stored as it came."""
        if all(factor == 1.0 for factor in self.factors):
            return self.b
        return [b if f == 1.0 else b.detach().float() * f for b, f in zip(self.b, self.factors, strict=True)]

    def of_layers(self, layers: range) -> Group:
        """Return its pairs in these layers."""
        mine = [i for i, layer in enumerate(self.layers) if layer in layers]
        return replace(
            self,
            layers=[self.layers[i] for i in mine],
            a=[self.a[i] for i in mine],
            b=[self.b[i] for i in mine],
            factors=[self.factors[i] for i in mine],
        )


@dataclass(frozen=True, eq=False)
class Part:
    """One adapter of a load: its pairs, the factor on all its pages, its largest rank, and the pages that takes."""

    groups: tuple[Group, ...]
    scale: float
    rank: int
    pages: int


@dataclass(frozen=True, eq=False)
class LoadPlan:
    """A checked load: shapes, ranks, dtypes and scales are right; whether the weights are finite shows in the copy."""

    parts: tuple[Part, ...]
    pages: int

    @property
    def sites(self) -> frozenset[str]:
        """Sites that any part touches."""
        return frozenset(group.site for part in self.parts for group in part.groups)

    def of_layers(self, layers: range) -> LoadPlan:
        """Return what it writes in these layers; pages and scales stay."""
        groups = [tuple(group.of_layers(layers) for group in part.groups) for part in self.parts]
        return replace(
            self,
            parts=tuple(
                replace(part, groups=tuple(group for group in mine if group.layers))
                for part, mine in zip(self.parts, groups, strict=True)
            ),
        )

    def pages_by_layer(self, spec: PoolSpec) -> dict[str, list[int]]:
        """For each site of `spec` and each of its layers: how many of the plan's first pages hold anything."""
        live = {site.name: [0] * spec.layers_of(site) for site in spec.sites}
        first = 0
        for part in self.parts:
            for group in part.groups:
                used, of_site = first + pages_for(spec, group.rank), live[group.site]
                for layer in group.layers:
                    of_site[layer] = max(of_site[layer], used)
            first += part.pages
        return live


def plan_load(spec: PoolSpec, what: Loadable) -> LoadPlan:
    """Check an adapter, or the weighted parts of a blend, against `spec`. No weight is read.

    Raises TargetError, ShapeError, RankError (also when the parts together have more pages than a slot can list),
    DtypeError, DeviceError, or NonFiniteError (a scale or a blend weight).
    """
    weighted: Sequence[tuple[AdapterTensors, float]] = [(what, 1.0)] if isinstance(what, Mapping) else what
    for _, weight in weighted:
        if not math.isfinite(weight):
            raise NonFiniteError(f"blend weight is {weight}")
    parts = tuple(_plan_part(spec, tensors, weight) for tensors, weight in weighted)
    plan = LoadPlan(parts, sum(part.pages for part in parts))
    check_page_count(spec, plan.pages)
    return plan


def check_page_count(spec: PoolSpec, pages: int) -> None:
    """Raise RankError when a slot cannot list so many pages."""
    if pages > spec.max_pages:
        raise RankError(f"slot would list {pages} pages, at most {spec.max_pages} fit")


def pages_for(spec: PoolSpec, rank: int) -> int:
    """Pages that `rank` ranks take."""
    return -(-rank // spec.page_size)


def _plan_part(spec: PoolSpec, tensors: AdapterTensors, weight: float) -> Part:
    sites = {site.name: site for site in spec.sites}
    scale = _common_scale(tensors)
    groups: dict[tuple[str, int, int], Group] = {}
    for key, pair in tensors.items():
        rank = _checked_rank(spec, sites, key, pair)
        layer, site, slice_index = key
        group = groups.get((site, slice_index, rank))
        if group is None:
            group = groups[site, slice_index, rank] = Group(site, slice_index, rank, [], [], [], [])
        group.layers.append(layer)
        group.a.append(pair.a)
        group.b.append(pair.b)
        group.factors.append(1.0 if pair.scale == scale else pair.scale / scale)
    rank = max((group.rank for group in groups.values()), default=0)
    return Part(tuple(groups.values()), scale * weight, rank, pages_for(spec, rank))


def _checked_rank(spec: PoolSpec, sites: dict[str, SiteSpec], key: tuple[int, str, int], pair: LoraPair) -> int:
    layer, name, slice_index = key
    site = sites.get(name)
    if site is None:
        raise TargetError(f"unknown site {name!r}; the pool has {sorted(sites)}")
    if not 0 <= layer < spec.layers_of(site):
        raise TargetError(f"{Target(*key)}: layer out of range, the site has {spec.layers_of(site)} layers")
    if not 0 <= slice_index < len(site.slices):
        raise TargetError(f"{Target(*key)}: slice out of range, the site has {len(site.slices)} slices")
    shape_a, shape_b = pair.a.shape, pair.b.shape
    if len(shape_a) != 2 or len(shape_b) != 2:
        raise ShapeError(f"{Target(*key)}: a and b must be matrices, got {tuple(shape_a)} and {tuple(shape_b)}")
    rank, width = shape_a[0], site.slices[slice_index]
    if shape_a[1] != site.in_features or shape_b[0] != width or shape_b[1] != rank:
        raise ShapeError(
            f"{Target(*key)}: expected a [r, {site.in_features}] and b [{width}, r], "
            f"got {tuple(shape_a)} and {tuple(shape_b)}"
        )
    if not 1 <= rank <= spec.max_rank:
        raise RankError(f"{Target(*key)}: rank {rank} is outside 1..{spec.max_rank}")
    for tensor in (pair.a, pair.b):
        if tensor.dtype not in WEIGHT_DTYPES:
            raise DtypeError(f"{Target(*key)}: weights must be floating point, got {tensor.dtype}")
        if tensor.is_meta:
            raise DeviceError(f"{Target(*key)}: weights have no data (device meta)")
    if not math.isfinite(pair.scale):
        raise NonFiniteError(f"{Target(*key)}: scale is {pair.scale}")
    return rank


def _common_scale(tensors: AdapterTensors) -> float:
    """The most frequent finite, non-zero scale: it costs no rounding where it is the only one, as in most adapters."""
    counts = Counter(pair.scale for pair in tensors.values())
    for scale, _ in counts.most_common():
        if scale != 0.0 and math.isfinite(scale):
            return float(scale)
    return 1.0
