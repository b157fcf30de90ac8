"""Training: ΔW x of many adapters in one batch, with gradients for x and for every adapter's own A and B.

Adapters that have the same rank and number of rows (as in most training batches) are one batched matmul each for v, Δ,
dx, dA and dB; others go bucket by bucket. Nothing is padded, and rows of one adapter never meet another's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from lora_kernels.errors import DtypeError, RankError, ShapeError, SlotError


@dataclass(frozen=True, eq=False)
class AdapterRows:
    """Which rows of a flattened training batch belong to which adapter: for each adapter (first, length) runs."""

    rows: int
    runs: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def build(cls, adapter_of_sequence: Sequence[int], lengths: Sequence[int], num_adapters: int) -> AdapterRows:
        """Describe sequences laid out one after the other: the adapter of each (-1: none) and its number of rows.

        A padded batch [B, T] is `build(adapters, [T] * B, n)`. Raises ShapeError or SlotError.
        """
        if len(adapter_of_sequence) != len(lengths) or (lengths and min(lengths) < 0):
            raise ShapeError(f"{len(adapter_of_sequence)} adapters for lengths {list(lengths)}")
        runs: list[list[tuple[int, int]]] = [[] for _ in range(num_adapters)]
        row = 0
        for adapter, length in zip(adapter_of_sequence, lengths, strict=True):
            if not -1 <= adapter < num_adapters:
                raise SlotError(f"adapter {adapter} is outside 0..{num_adapters - 1}")
            if adapter >= 0 and length:
                runs[adapter].append((row, length))
            row += length
        return cls(row, tuple(map(tuple, runs)))

    def count(self, adapter: int) -> int:
        """Return the number of rows of one adapter."""
        return sum(length for _, length in self.runs[adapter])


def lora_delta(
    x: torch.Tensor,
    a: Sequence[torch.Tensor],
    b: Sequence[torch.Tensor],
    scales: Sequence[float],
    rows: AdapterRows,
) -> torch.Tensor:
    """Return Δ[i] = scale · (x[i] Aᵀ) Bᵀ with the adapter of row i, 0 where it has none; differentiable in x, a and b.

    x: [rows, K]; a[j]: [r_j, K]; b[j]: [N, r_j], ranks free; one floating dtype and device for all. Returns [rows, N].
    An adapter without rows gets no gradient (None), so that an optimiser leaves it and its moments alone.
    Training several adapters over one base in a batch: mLoRA (arXiv 2312.02515).
    Raises ShapeError, RankError or DtypeError before anything is computed.
    """
    _check(x, a, b, scales, rows)
    return _LoraDelta.apply(x, tuple(scales), rows, *a, *b)  # type: ignore[no-any-return, no-untyped-call]


@dataclass(frozen=True, eq=False)
class _Bucket:
    """Adapters of one rank and number of rows: x [adapters, m, K] and so on are batched matmuls."""

    adapters: list[int]
    rows: torch.Tensor | slice
    m: int

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """Turn [rows, width] into [adapters, m, width]"""
        return tensor[self.rows].view(len(self.adapters), self.m, -1)

    def scales(self, of_all: Sequence[float], like: torch.Tensor) -> torch.Tensor:
        return torch.tensor([of_all[j] for j in self.adapters], dtype=like.dtype, device=like.device)[:, None, None]


def _buckets(a: Sequence[torch.Tensor], rows: AdapterRows, device: torch.device) -> list[_Bucket]:
    by_shape: dict[tuple[int, int], list[int]] = {}
    for j, weights in enumerate(a):
        if rows.runs[j]:
            by_shape.setdefault((weights.shape[0], rows.count(j)), []).append(j)
    return [_Bucket(adapters, _rows_of(adapters, rows, device), m) for (_, m), adapters in by_shape.items()]


def _rows_of(adapters: Sequence[int], rows: AdapterRows, device: torch.device) -> torch.Tensor | slice:
    """Return their rows, adapter after adapter; a slice, which copies nothing, where they happen to lie so."""
    runs = [run for j in adapters for run in rows.runs[j]]
    if all(first + length == following for (first, length), (following, _) in pairwise(runs)):
        return slice(runs[0][0], runs[-1][0] + runs[-1][1])
    return torch.cat([torch.arange(first, first + length) for first, length in runs]).to(device)


class _LoraDelta(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, scales: tuple[float, ...], rows: AdapterRows, *weights: torch.Tensor
    ) -> torch.Tensor:
        a, b = weights[: len(scales)], weights[len(scales) :]
        delta = x.new_zeros(rows.rows, b[0].shape[0])
        ctx.scales, ctx.buckets = scales, _buckets(a, rows, x.device)
        scaled = []
        for bucket in ctx.buckets:
            v = bucket.take(x) @ _stack(a, bucket).transpose(1, 2) * bucket.scales(scales, x)
            delta[bucket.rows] = (v @ _stack(b, bucket).transpose(1, 2)).flatten(0, 1)
            scaled.append(v)
        ctx.save_for_backward(x, *weights, *scaled)
        return delta

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        count = len(ctx.scales)
        x, *rest = ctx.saved_tensors
        a, b, scaled = rest[:count], rest[count : 2 * count], rest[2 * count :]
        wants_x, wants = ctx.needs_input_grad[0], ctx.needs_input_grad[3:]
        grad_x = torch.zeros_like(x) if wants_x else None
        grads: list[torch.Tensor | None] = [None] * (2 * count)
        for bucket, v in zip(ctx.buckets, scaled, strict=True):
            grad_delta = bucket.take(grad)
            grad_v = grad_delta @ _stack(b, bucket) * bucket.scales(ctx.scales, x)
            if grad_x is not None:
                grad_x[bucket.rows] = (grad_v @ _stack(a, bucket)).flatten(0, 1)
            if any(wants[j] for j in bucket.adapters):
                _hand_out(grads, bucket.adapters, grad_v.transpose(1, 2) @ bucket.take(x))
            if any(wants[count + j] for j in bucket.adapters):
                _hand_out(grads, [count + j for j in bucket.adapters], grad_delta.transpose(1, 2) @ v)
        return grad_x, None, None, *(grad if wanted else None for grad, wanted in zip(grads, wants, strict=True))


def _stack(weights: Sequence[torch.Tensor], bucket: _Bucket) -> torch.Tensor:
    if len(bucket.adapters) == 1:
        return weights[bucket.adapters[0]][None]
    return torch.stack([weights[j] for j in bucket.adapters])


def _hand_out(grads: list[torch.Tensor | None], places: Sequence[int], stacked: torch.Tensor) -> None:
    for place, grad in zip(places, stacked.unbind(0), strict=True):
        grads[place] = grad


def _check(
    x: torch.Tensor, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], scales: Sequence[float], rows: AdapterRows
) -> None:
    if not a or not len(a) == len(b) == len(scales) == len(rows.runs):
        raise ShapeError(f"{len(a)} a, {len(b)} b, {len(scales)} scales for {len(rows.runs)} adapters")
    if x.dim() != 2 or x.shape[0] != rows.rows:
        raise ShapeError(f"x: expected [{rows.rows}, K], got {tuple(x.shape)}")
    for j, (down, up) in enumerate(zip(a, b, strict=True)):
        if down.dim() != 2 or up.shape != (b[0].shape[0], down.shape[0]) or down.shape[1] != x.shape[1]:
            raise ShapeError(f"adapter {j}: a {tuple(down.shape)} and b {tuple(up.shape)} do not fit x and each other")
        if not down.shape[0]:
            raise RankError(f"adapter {j}: rank 0")
        if not down.dtype == up.dtype == x.dtype or not x.dtype.is_floating_point:
            raise DtypeError(f"adapter {j}: a {down.dtype}, b {up.dtype} and x {x.dtype} must be one floating dtype")
