"""The points of the GPU benchmark at Llama-3-8B's sites, their inputs, and the bytes that no kernel can avoid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lora_kernels import SiteSpec

SITES = {
    "qkv": SiteSpec("qkv", 4096, (4096, 1024, 1024)),
    "o": SiteSpec("o", 4096, (4096,)),
    "gate_up": SiteSpec("gate_up", 4096, (14336, 14336)),
    "down": SiteSpec("down", 14336, (4096,)),
}
# Ranks taken in turn by the adapters of a batch.
RANKS = {"16": (16,), "mixed": (8, 16, 32, 64)}
# The points that are measured: sites, batches, distributions, ranks.
GRID = (("qkv", "down"), (1, 32, 256), ("zipf", "distinct"), ("16", "mixed"))
# Layers that one captured graph runs through: each finds its weights outside the second-level cache, as in a model.
MOST_LAYERS = 32
MOST_BYTES = 2**30
BYTES = 2  # bfloat16


@dataclass(frozen=True)
class GpuPoint:
    """One decode step at one site: `batch` rows, whose adapters are all one, drawn by Zipf's law, or all distinct."""

    site: str
    batch: int
    distribution: str
    ranks: str

    @property
    def spec(self) -> SiteSpec:
        """The site's shape."""
        return SITES[self.site]

    def row_adapters(self, seed: int) -> list[int]:
        """The adapter of each row, numbered from 0 in order of appearance."""
        if self.distribution == "one":
            return [0] * self.batch
        if self.distribution == "distinct":
            return list(range(self.batch))
        weights = 1 / torch.arange(1, self.batch + 1, dtype=torch.float64)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.multinomial(weights, self.batch, replacement=True, generator=generator).tolist()
        numbers: dict[int, int] = {}
        return [numbers.setdefault(adapter, len(numbers)) for adapter in drawn]

    def adapter_ranks(self, distinct: int) -> list[int]:
        """The rank of each adapter."""
        ranks = RANKS[self.ranks]
        return [ranks[adapter % len(ranks)] for adapter in range(distinct)]

    def weight_bytes(self, ranks: Sequence[int]) -> int:
        """A and B of the distinct adapters, once."""
        return BYTES * sum(ranks) * (len(self.spec.slices) * self.spec.in_features + self.spec.out_features)

    def limit_bytes(self, ranks: Sequence[int]) -> int:
        """Weights and x read once, y read and written once."""
        return self.weight_bytes(ranks) + BYTES * self.batch * (self.spec.in_features + 2 * self.spec.out_features)

    def layers(self, ranks: Sequence[int]) -> int:
        """Layers measured together: those of the model, or as many as fit a GiB, two at least."""
        return max(2, min(MOST_LAYERS, MOST_BYTES // self.weight_bytes(ranks)))


def points() -> list[GpuPoint]:
    """The grid; of one row there is one distribution."""
    sites, batches, distributions, ranks = GRID
    return [
        GpuPoint(site, batch, distribution, rank)
        for site in sites
        for batch in batches
        for distribution in (distributions if batch > 1 else ("one",))
        for rank in ranks
    ]


@dataclass(frozen=True, eq=False)
class GpuInputs:
    """x [T, K]; y [T, N]; rows[i] the adapter of row i; a[layer][adapter] [slices, r, K], b[layer][adapter] [N, r]."""

    point: GpuPoint
    x: torch.Tensor
    y: torch.Tensor
    rows: list[int]
    ranks: list[int]
    a: list[list[torch.Tensor]]
    b: list[list[torch.Tensor]]

    @property
    def layers(self) -> int:
        return len(self.a)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """Columns of y that each slice covers."""
        ends = torch.tensor(self.point.spec.slices).cumsum(0).tolist()
        return [(end - width, end) for end, width in zip(ends, self.point.spec.slices, strict=True)]

    def expected(self, layer: int) -> torch.Tensor:
        """y after one application of one layer, float32."""
        y = self.y.float()
        for adapter in range(len(self.ranks)):
            rows = [row for row, other in enumerate(self.rows) if other == adapter]
            for index, (begin, end) in enumerate(self.bounds):
                v = self.x[rows].float() @ self.a[layer][adapter][index].float().T
                y[rows, begin:end] += v @ self.b[layer][adapter][begin:end].float().T
        return y


def make_inputs(point: GpuPoint, seed: int, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> GpuInputs:
    """Seeded inputs; a value of the adapters' part of y is about 1."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*size: int, over: float = 1) -> torch.Tensor:
        return (torch.randn(*size, generator=generator, device=device) / over**0.5).to(dtype)

    rows = point.row_adapters(seed)
    ranks = point.adapter_ranks(max(rows) + 1)
    k, n, slices = point.spec.in_features, point.spec.out_features, len(point.spec.slices)
    layers = range(point.layers(ranks))
    return GpuInputs(
        point,
        normal(point.batch, k),
        normal(point.batch, n),
        rows,
        ranks,
        [[normal(slices, rank, k, over=k) for rank in ranks] for _ in layers],
        [[normal(n, rank, over=rank) for rank in ranks] for _ in layers],
    )
