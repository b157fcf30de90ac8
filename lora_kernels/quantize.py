"""fp8-e4m3 pages: one scale per rank, and the error that makes in ΔW, computed exactly without forming ΔW."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lora_kernels.errors import NonFiniteError
from lora_kernels.loading import Group
from lora_kernels.spec import Target

FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max
# e4m3 keeps three bits of mantissa: values spread evenly in logarithm are off by 2.6 % (root mean square), so the
# product of two matrices by 3.7 %. Gaussian weights of every rank measure about that (tests/lora_kernels/test_fp8.py).
# Adapters whose ranks cancel each other lose more, and those are refused: the error stays, what it is relative to goes.
MAX_ERROR = 0.05


@dataclass(frozen=True, eq=False)
class QuantizedGroup:
    """`group` holds a and b as fp8; rank_scales float32 [layers, rank] undo the scaling of both.

    error: ‖ΔW' - ΔW‖ / ‖ΔW‖ in the Frobenius norm, largest of the group's layers: the root-mean-square error of ΔW x
    over random x, relative to ΔW x.
    """

    group: Group
    rank_scales: torch.Tensor
    error: float


def quantize_group(group: Group) -> QuantizedGroup:
    """Quantise all layers of a group. Raises NonFiniteError."""
    a = torch.stack([t.detach().float().cpu() for t in group.a])
    b = torch.stack([t.detach().float().cpu() for t in group.folded_b()])
    finite = a.isfinite().flatten(1).all(1) & b.isfinite().flatten(1).all(1)
    if not finite.all():
        layer = group.layers[int(finite.logical_not().nonzero()[0])]
        raise NonFiniteError(f"{Target(layer, group.site, group.slice_index)}: weights are not finite")
    scale_a = _scale(a.abs().amax(2))
    scale_b = _scale(b.abs().amax(1))
    q_a = (a / scale_a[:, :, None]).to(FP8)
    q_b = (b / scale_b[:, None, :]).to(FP8)
    error = relative_error(a, b, q_a.float() * scale_a[:, :, None], q_b.float() * scale_b[:, None, :])
    stored = Group(
        group.site, group.slice_index, group.rank, group.layers,
        list(q_a.unbind(0)), list(q_b.unbind(0)), [1.0] * len(group.layers),
    )  # fmt: skip
    return QuantizedGroup(stored, scale_a * scale_b, float(error.max()))


def relative_error(a: torch.Tensor, b: torch.Tensor, other_a: torch.Tensor, other_b: torch.Tensor) -> torch.Tensor:
    """‖other_b other_a - b a‖ / ‖b a‖ (Frobenius) of each of g products; a [g, r, K], b [g, N, r] -> [g]; 0 for ΔW = 0.

    Exact, from 2r x 2r Gram matrices: ‖L R‖² = Σ (LᵀL) ∘ (R Rᵀ), and the difference is [b, db] [da; other_a].
    """
    left = torch.cat((b, other_b - b), 2)
    right = torch.cat((other_a - a, other_a), 1)
    off, whole = _norm(left, right), _norm(b, a)
    return torch.where(whole > 0, off / whole.clamp_min(torch.finfo(whole.dtype).tiny), torch.zeros_like(whole))


def _norm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """‖left right‖ of each product; float32 Gram matrices, summed in float64."""
    grams = (left.transpose(1, 2) @ left).double() * (right @ right.transpose(1, 2)).double()
    return grams.sum((1, 2)).clamp_min(0).sqrt()


def _scale(largest: torch.Tensor) -> torch.Tensor:
    """Factor that brings each rank's largest value to the top of the format; 1 for a rank of zeros."""
    return torch.where(largest > 0, largest / FP8_MAX, torch.ones_like(largest))
