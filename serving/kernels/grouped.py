"""A weight in 4 or 8 bits whose numbers share scales by groups of inputs: the one form of integer checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

# A number of 4 bits without minimum or zero stands for itself less this.
CENTRE = 8


@dataclass(frozen=True, slots=True, eq=False)
class GroupedWeight:
    """weight[n, k] = code · scale, code · scale + minimum, or (code - zero) · scale, those of group k // group.

    codes: int8 [out, in], -128 to 127; or, in 4 bits, uint8 [out, in / 2]: 0 to 15, the even inputs in the low halves
    scales: float16, bfloat16 or float32 [out, ⌈in / group⌉]
    minima, zeros: the same shape and type; at most one of them. Codes of 4 bits with neither are less 8
    """

    codes: torch.Tensor
    scales: torch.Tensor
    group: int
    minima: torch.Tensor | None = None
    zeros: torch.Tensor | None = None

    @property
    def four_bits(self) -> bool:
        return self.codes.dtype == torch.uint8

    @property
    def shape(self) -> tuple[int, int]:
        """Return (outputs, inputs)."""
        outputs, width = self.codes.shape
        return outputs, 2 * width if self.four_bits else width

    @property
    def nbytes(self) -> int:
        beside = sum(part.nbytes for part in (self.minima, self.zeros) if part is not None)
        return self.codes.nbytes + self.scales.nbytes + beside

    def dequantised(self) -> torch.Tensor:
        """Return the weight in float32, a new tensor: one rounding after an exact product."""
        codes = (unpack_nibbles(self.codes) if self.four_bits else self.codes).float()
        if self.four_bits and self.minima is None and self.zeros is None:
            codes -= CENTRE
        for group, part in enumerate(codes.split(self.group, 1)):
            if self.zeros is not None:
                part.sub_(self.zeros[:, group : group + 1].float())
            part.mul_(self.scales[:, group : group + 1].float())
            if self.minima is not None:
                part.add_(self.minima[:, group : group + 1].float())
        return codes

    def to(self, device: torch.device) -> GroupedWeight:
        """Return a copy on a device, which shares no memory with a mapped file."""

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device=device, copy=True)

        return replace(
            self,
            codes=moved(self.codes),
            scales=moved(self.scales),
            minima=None if self.minima is None else moved(self.minima),
            zeros=None if self.zeros is None else moved(self.zeros),
        )


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Return numbers 0 to 15, uint8 [out, in], two to a byte: the even ones in the low halves."""
    return codes[:, ::2] | codes[:, 1::2] << 4


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Return uint8 [out, in] of uint8 [out, in / 2]."""
    return torch.stack((packed & 15, packed >> 4), 2).flatten(1)


def stack(parts: Sequence[GroupedWeight]) -> GroupedWeight | None:
    """Return weights with their outputs stacked, each number as it was; None where one has minima and one zeros.

    Parts of other bits, groups or scales than their neighbours' are brought to a form that can hold all of them.
    """
    has_minima = any(part.minima is not None for part in parts)
    has_zeros = any(part.zeros is not None for part in parts)
    if has_minima and has_zeros:
        return None
    four_bits = all(part.four_bits for part in parts)
    group = math.gcd(*(part.group for part in parts))
    types = {part.scales.dtype for part in parts}
    dtype = types.pop() if len(types) == 1 else torch.float32
    width = parts[0].shape[1]
    forms = [_with_offsets(part if four_bits else _in_eight_bits(part), has_minima, has_zeros) for part in parts]

    def all_of(name: str) -> torch.Tensor:
        groups = [
            getattr(form, name).repeat_interleave(form.group // group, 1)[:, : -(-width // group)] for form in forms
        ]
        return torch.cat([each.to(dtype) for each in groups])

    return GroupedWeight(
        codes=torch.cat([form.codes for form in forms]),
        scales=all_of("scales"),
        group=group,
        minima=all_of("minima") if has_minima else None,
        zeros=all_of("zeros") if has_zeros else None,
    )


def _in_eight_bits(weight: GroupedWeight) -> GroupedWeight:
    if not weight.four_bits:
        return weight
    codes = unpack_nibbles(weight.codes).to(torch.int8)
    alone = weight.minima is None and weight.zeros is None
    return replace(weight, codes=codes - CENTRE if alone else codes)


def _with_offsets(weight: GroupedWeight, minima: bool, zeros: bool) -> GroupedWeight:
    """Return the same numbers in a form that has minima or zeros, where its neighbours have them."""
    if weight.minima is not None or weight.zeros is not None or not (minima or zeros):
        return weight
    centre = CENTRE if weight.four_bits else 0
    if zeros:
        return replace(weight, zeros=torch.full_like(weight.scales, centre))
    return replace(weight, minima=-centre * weight.scales)
