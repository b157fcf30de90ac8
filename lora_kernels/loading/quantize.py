"""8-bit pages: one scale per rank, and the error that makes in ΔW, computed exactly without forming ΔW."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from lora_kernels.errors import NonFiniteError
from lora_kernels.loading.plan import Group
from lora_kernels.spec import Target

FP8 = torch.float8_e4m3fn
# The value that a rank's largest weight becomes in each type; integers are symmetric.
LARGEST = {FP8: torch.finfo(FP8).max, torch.int8: 127.0}
# Layers are quantised so many values at a time: in the caches, and in memory that the system need not clear. All 30
# layers of 576 -> 1,536 at once take twice as long.
CHUNK_VALUES = 1 << 18
# e4m3 keeps three bits of mantissa: values spread evenly in logarithm are off by 2.6 % (root mean square), so the
# product of two matrices by 3.7 %. 8-bit integers are off by at most half a 127th of their rank's largest, the products
# of Gaussian weights by 0.8 to 1.2 %. Weights of every rank measure about that (tests/lora_kernels/test_eight_bits.py).
# Adapters whose ranks cancel each other lose more, and those are refused: the error stays, what it is relative to goes.
MAX_ERROR = 0.05


@dataclass(frozen=True, eq=False)
class QuantizedGroup:
    """`group` holds a and b in 8 bits; rank_scales float32 [layers, rank] undo the scaling of both.

    error: ‖ΔW' - ΔW‖ / ‖ΔW‖ in the Frobenius norm, largest of the group's layers: the root-mean-square error of ΔW x
    over random x, relative to ΔW x.
    """

    group: Group
    rank_scales: torch.Tensor
    error: float


def quantize_group(group: Group, dtype: torch.dtype, pause: Callable[[], None] = lambda: None) -> QuantizedGroup:
    """Quantise all layers of a group to float8_e4m3fn or int8, calling `pause` before each piece.

    Raises NonFiniteError.
    """
    a = group.a
    b = group.folded_b()
    layers = max(1, CHUNK_VALUES // (a[0].numel() + b[0].numel()))
    chunks = []
    for i in range(0, len(a), layers):
        pause()
        chunks.append(_quantize(a[i : i + layers], b[i : i + layers], dtype))
    finite = torch.cat([chunk.finite for chunk in chunks])
    if not finite.all():
        layer = group.layers[int(finite.logical_not().nonzero()[0])]
        raise NonFiniteError(f"{Target(layer, group.site, group.slice_index)}: weights are not finite")
    stored = replace(
        group,
        a=[a for chunk in chunks for a in chunk.a],
        b=[b.T for chunk in chunks for b in chunk.b],
        factors=[1.0] * len(group.layers),
    )
    error = max(float(chunk.error.max()) for chunk in chunks)
    return QuantizedGroup(stored, torch.cat([chunk.rank_scales for chunk in chunks]), error)


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """Some layers: a [g, r, K] and b [g, r, N] in 8 bits; rank_scales float32 [g, r]; error float64 and finite [g]."""

    a: torch.Tensor
    b: torch.Tensor
    rank_scales: torch.Tensor
    error: torch.Tensor
    finite: torch.Tensor


def _quantize(a_layers: Sequence[torch.Tensor], b_layers: Sequence[torch.Tensor], dtype: torch.dtype) -> _Chunk:
    a = torch.stack([t.detach().float().cpu() for t in a_layers])
    b = torch.stack([t.detach().float().cpu() for t in b_layers]).transpose(1, 2).contiguous()
    largest_a, largest_b = _largest(a), _largest(b)
    scale_a, scale_b = _scale(largest_a, dtype), _scale(largest_b, dtype)
    q_a, off_a = _rounded(a, scale_a[:, :, None], dtype)
    q_b, off_b = _rounded(b, scale_b[:, :, None], dtype)
    error = relative_error(a, b, off_a, off_b)
    return _Chunk(q_a, q_b, scale_a * scale_b, error, (largest_a + largest_b).isfinite().all(1))


def relative_error(a: torch.Tensor, b: torch.Tensor, off_a: torch.Tensor, off_b: torch.Tensor) -> torch.Tensor:
    """‖(b + off_b)ᵀ (a + off_a) - bᵀ a‖ / ‖bᵀ a‖ (Frobenius) of each of g products; 0 where bᵀ a is.

    a, off_a [g, r, K], b, off_b [g, r, N] float32 -> float64 [g]. Exact, from r x r Gram matrices: the difference is
    bᵀ off_a + off_bᵀ (a + off_a), and ‖L R + M S‖² = Σ (LᵀL) ∘ (R Rᵀ) + 2 (LᵀM) ∘ (R Sᵀ) + (MᵀM) ∘ (S Sᵀ).
    """
    other_a, gram_b = a + off_a, _gram(b, b)
    whole = _sum(gram_b, _gram(a, a))
    off = (
        _sum(gram_b, _gram(off_a, off_a))
        + 2 * _sum(_gram(b, off_b), _gram(off_a, other_a))
        + _sum(_gram(off_b, off_b), _gram(other_a, other_a))
    )
    tiny = torch.finfo(torch.float64).tiny
    return torch.where(whole > 0, (off.clamp_min(0) / whole.clamp_min(tiny)).sqrt(), torch.zeros_like(whole))


def _gram(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left @ right.transpose(1, 2)


def _sum(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Σ left ∘ right of each pair, in float64."""
    return (left.double() * right.double()).sum((1, 2))


def _largest(values: torch.Tensor) -> torch.Tensor:
    """Largest absolute value of each rank, NaN where there is one; [g, r, n] -> [g, r]."""
    # aminmax takes 20 times as long.
    return torch.maximum(values.amax(2), -values.amin(2))


def _rounded(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """values / scale in `dtype`, to nearest, ties to even; and how far that is off, in the values' own size."""
    scaled = values / scale
    rounded = scaled.to(dtype) if dtype.is_floating_point else scaled.round_()
    return rounded.to(dtype), rounded.float() * scale - values


def _scale(largest: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Factor that brings each rank's largest value to the top of the format; 1 for a rank of zeros."""
    return torch.where(largest > 0, largest / LARGEST[dtype], torch.ones_like(largest))
