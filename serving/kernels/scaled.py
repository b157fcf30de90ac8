"""A weight in 8-bit floats with its scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True, eq=False)
class ScaledWeight:
    """weight[n, k] = data[n, k] · scales[n // rows, k // columns].

    data: float8_e4m3fn [out, in]; rows, columns: outputs and inputs that share a scale
    scales: float32 [⌈out / rows⌉, ⌈in / columns⌉]
    activations: the product's inputs are quantised too, in groups of `columns`; False: they keep their type
    """

    data: torch.Tensor
    scales: torch.Tensor
    rows: int
    columns: int
    activations: bool = True

    @property
    def shape(self) -> tuple[int, int]:
        """Return (outputs, inputs)."""
        outputs, inputs = self.data.shape
        return outputs, inputs

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + self.scales.nbytes

    def dequantised(self) -> torch.Tensor:
        """Return the weight in float32, a new tensor."""
        wide = self.data.float()
        factors = self.scales.repeat_interleave(self.rows, 0)[: len(wide)]
        for group, part in enumerate(wide.split(self.columns, 1)):
            part.mul_(factors[:, group : group + 1])
        return wide

    def to(self, device: torch.device) -> ScaledWeight:
        """Return a copy on a device, which shares no memory with a mapped file."""
        data, scales = (part.to(device=device, copy=True) for part in (self.data, self.scales))
        return replace(self, data=data, scales=scales)


def stack(parts: Sequence[ScaledWeight]) -> ScaledWeight:
    """Return weights of one kind with their outputs stacked, no scale changed.

    Where a part does not end with a block, fewer outputs share a scale afterwards: the greatest common divisor.
    """
    first = parts[0]
    rows = math.gcd(first.rows, *(len(part.data) for part in parts[:-1]))
    scales = [part.scales.repeat_interleave(part.rows // rows, 0)[: -(-len(part.data) // rows)] for part in parts]
    return replace(first, data=torch.cat([part.data for part in parts]), scales=torch.cat(scales), rows=rows)
