"""The points that are measured, and the seeded inputs of one of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class Shape:
    """One adapted site: x [T, k] in, the slices side by side out."""

    k: int
    slices: tuple[int, ...]

    @property
    def n(self) -> int:
        """Columns of y."""
        return sum(self.slices)

    def __str__(self) -> str:
        return f"{self.k}→{self.n}" + (f"/{len(self.slices)}" if len(self.slices) > 1 else "")


@dataclass(frozen=True)
class Point:
    """`rows` tokens, shared evenly by `distinct` adapters of one rank."""

    dtype: str
    shape: Shape
    rows: int
    distinct: int
    rank: int

    @property
    def torch_dtype(self) -> torch.dtype:
        """Type of weights and activations."""
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[self.dtype]

    @property
    def weight_bytes(self) -> int:
        """Every distinct adapter's A and B, once."""
        return self.distinct * self.rank * (len(self.shape.slices) * self.shape.k + self.shape.n) * self._size

    @property
    def activation_bytes(self) -> int:
        """x read, y read and written."""
        return self.rows * (self.shape.k + 2 * self.shape.n) * self._size

    @property
    def flops(self) -> int:
        """Return the operations of shrink and expand, two per multiply-add."""
        return 2 * self.rows * self.rank * (len(self.shape.slices) * self.shape.k + self.shape.n)

    @property
    def _size(self) -> int:
        return self.torch_dtype.itemsize


SHAPES = (
    Shape(576, (1536,)),  # gate or up of SmolLM2-135M
    Shape(576, (576, 192, 192)),  # its fused qkv
    Shape(1536, (576,)),  # its down
    Shape(4096, (4096,)),  # o of Llama-3-8B
)
DTYPES = ("float32", "bfloat16")
ROWS = (1, 8, 32, 128, 512)
DISTINCT = (1, 8, 32)
RANKS = (8, 16, 64)
# The point whose time is promised as a share of the base model's own matmul.
NAMED = (SHAPES[0], 32, 32, 16)
QUICK_ROWS = (1, 32, 512)
QUICK_RANKS = (16,)


def points(quick: bool, dtypes: tuple[str, ...] = DTYPES) -> list[Point]:
    """The whole grid, or with `quick` a seventh of it."""
    rows, ranks = (QUICK_ROWS, QUICK_RANKS) if quick else (ROWS, RANKS)
    return [
        Point(dtype, shape, count, distinct, rank)
        for dtype in dtypes
        for shape in SHAPES
        for count in rows
        for distinct in DISTINCT
        for rank in ranks
        if distinct <= count
    ]


@dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs of every contender: requests of adapter 0, 1, ... one after another, rows / distinct tokens each.

    x [T, K]; y [T, N]; a [D, slices, r, K]; b[slice] [D, N_slice, r], as checkpoints store them; scale of them all.
    """

    point: Point
    x: torch.Tensor
    y: torch.Tensor
    a: torch.Tensor
    b: tuple[torch.Tensor, ...]
    scale: float

    @property
    def rows_each(self) -> int:
        """Tokens of one adapter."""
        return self.point.rows // self.point.distinct

    @cached_property
    def row_adapters(self) -> torch.Tensor:
        """int64 [T], the adapter of each row."""
        return torch.arange(self.point.distinct).repeat_interleave(self.rows_each)

    @cached_property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Columns of y that each slice covers."""
        ends = torch.tensor(self.point.shape.slices).cumsum(0).tolist()
        return tuple((end - width, end) for end, width in zip(ends, self.point.shape.slices, strict=True))

    def expected(self) -> torch.Tensor:
        """y after one application: float32 throughout, rounded once."""
        y = self.y.to(torch.float32, copy=True)
        for adapter in range(self.point.distinct):
            rows = slice(adapter * self.rows_each, (adapter + 1) * self.rows_each)
            for index, (begin, end) in enumerate(self.bounds):
                v = self.x[rows].float() @ self.a[adapter, index].float().T
                y[rows, begin:end] += self.scale * v @ self.b[index][adapter].float().T
        return y.to(self.y.dtype)


def make_inputs(point: Point, seed: int) -> Inputs:
    """Weights sized so that a value of the adapters' part of y is about 1."""
    generator = torch.Generator().manual_seed(seed)
    shape, dtype = point.shape, point.torch_dtype

    def normal(*size: int, over: float) -> torch.Tensor:
        return (torch.randn(*size, generator=generator) / over**0.5).to(dtype)

    return Inputs(
        point,
        normal(point.rows, shape.k, over=1),
        normal(point.rows, shape.n, over=1),
        normal(point.distinct, len(shape.slices), point.rank, shape.k, over=shape.k),
        tuple(normal(point.distinct, width, point.rank, over=point.rank) for width in shape.slices),
        0.5,
    )
