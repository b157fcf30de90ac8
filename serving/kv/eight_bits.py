"""Keys and values as 8-bit floats (E4M3 of the OCP specification "OFP8", 2023), with one scale per slot and KV head."""

from __future__ import annotations

import torch

FP8 = torch.float8_e4m3fn
# The largest finite E4M3 number.
FP8_MAX = 448.0


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x [..., head_dim] as float8_e4m3fn and its scales, float32 [...]: x ≈ data · scale.

    The scale is the largest magnitude / 448, so that nothing is clipped; where all are 0 it is 0. Values that are not
    finite become NaN.
    """
    wide = x.float()
    largest = wide.abs().amax(-1)
    inverse = torch.where(largest > 0, FP8_MAX / largest, 0.0)
    return (wide * inverse[..., None]).clamp(-FP8_MAX, FP8_MAX).to(FP8), largest / FP8_MAX


def dequantise(data: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return data [..., head_dim] times scales [...] in `dtype`."""
    return (data.float() * scales[..., None]).to(dtype)
