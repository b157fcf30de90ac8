"""The nouns: what a model's adapted sites look like, and what one adapter's weights look like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from lora_kernels.errors import ShapeError

PAGE_SIZES = (8, 16)


@dataclass(frozen=True)
class SiteSpec:
    """One adapted linear site, the same in every layer.

    `in_features` is K; `slices` holds the output features of each fused projection in order, so that a fused qkv of a
    576-wide model with 3 key/value heads is `SiteSpec("qkv", 576, (576, 192, 192))`. An embedding is a site whose
    `in_features` is the vocabulary. `num_layers` overrides the pool's number for sites outside the layer stack
    (`1` for embeddings and the output head; their layer index is then 0).
    """

    name: str
    in_features: int
    slices: tuple[int, ...]
    num_layers: int | None = None

    def __post_init__(self) -> None:
        if self.in_features < 1 or not self.slices or min(self.slices) < 1:
            raise ShapeError(f"site {self.name!r}: sizes must be positive, got {self.in_features} -> {self.slices}")
        if self.num_layers is not None and self.num_layers < 1:
            raise ShapeError(f"site {self.name!r}: num_layers must be positive, got {self.num_layers}")

    @property
    def out_features(self) -> int:
        """N, the width of y: the sum of the slices."""
        return sum(self.slices)


@dataclass(frozen=True)
class PoolSpec:
    """The sites of a model, its depth, and how ranks are paged.

    `page_size` is the number of ranks in a page (16, or 8); `max_rank` bounds one slot, a blend included, and is
    rounded up to whole pages.
    """

    sites: tuple[SiteSpec, ...]
    num_layers: int
    page_size: int = 16
    max_rank: int = 256

    def __post_init__(self) -> None:
        names = [site.name for site in self.sites]
        if not names or len(set(names)) != len(names):
            raise ShapeError(f"sites must be named and distinct, got {names}")
        if self.num_layers < 1 or self.max_rank < 1:
            raise ShapeError("num_layers and max_rank must be positive")
        if self.page_size not in PAGE_SIZES:
            raise ShapeError(f"page_size must be one of {PAGE_SIZES}, got {self.page_size}")

    @property
    def max_pages(self) -> int:
        """Pages one slot can list."""
        return -(-self.max_rank // self.page_size)

    def layers_of(self, site: SiteSpec) -> int:
        """Number of layers in which `site` occurs."""
        return self.num_layers if site.num_layers is None else site.num_layers

    def page_bytes(self, dtype: torch.dtype) -> int:
        """Memory of one page over all layers and sites, without the padding of a backend; 8-bit pages have scales."""
        weights = sum(self.layers_of(s) * (len(s.slices) * s.in_features + s.out_features) for s in self.sites)
        scales = sum(self.layers_of(s) * len(s.slices) for s in self.sites) if dtype.itemsize == 1 else 0
        return self.page_size * (weights * dtype.itemsize + scales * torch.float32.itemsize)


class Target(NamedTuple):
    """The place one LoRA pair belongs to. Plain `(layer, site, slice_index)` tuples compare equal to it."""

    layer: int
    site: str
    slice_index: int


@dataclass(frozen=True, eq=False)
class LoraPair:
    """One target's weights: ΔW = scale · b @ a, with `a` [r, in] and `b` [out, r] (Hu et al., arXiv 2106.09685).

    `scale` is alpha/r, or alpha/sqrt(r) for rsLoRA; each pair has its own, which is all that rank and alpha
    patterns need.
    """

    a: torch.Tensor
    b: torch.Tensor
    scale: float


# Whole adapter; a missing key is an untouched target.
AdapterTensors = Mapping[tuple[int, str, int], LoraPair]
