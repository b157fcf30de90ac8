"""Rotary position embedding (Su et al., arXiv 2104.09864), in Hugging Face's half-split layout."""

from __future__ import annotations

import math

import torch

from serving.models.rope_config import Llama3Scaling, Rope


def inverse_frequencies(rope: Rope) -> torch.Tensor:
    """Return float32 [dims / 2], scaled as the model asks for."""
    exponent = torch.arange(0, rope.dims, 2, dtype=torch.int64).float() / rope.dims
    wavelengths = rope.theta**exponent
    if len(rope.divisors) > 1:
        return 1.0 / (torch.tensor(rope.divisors) * wavelengths)
    inverse = 1.0 / wavelengths
    if rope.divisors:
        return inverse / rope.divisors[0]
    return inverse if rope.scaling is None else _llama3(inverse, rope.scaling)


def _llama3(inverse: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Divide long wavelengths by the factor, leave short ones, and blend between."""
    low_wavelength = scaling.original_max_position / scaling.low_freq_factor
    high_wavelength = scaling.original_max_position / scaling.high_freq_factor
    wavelength = 2 * math.pi / inverse
    smooth = (scaling.original_max_position / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - smooth) * inverse / scaling.factor + smooth * inverse
    scaled = torch.where(wavelength > low_wavelength, inverse / scaling.factor, blended)
    return torch.where(wavelength < high_wavelength, inverse, scaled)


def rope_tables(rope: Rope, length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return [length, 2, dims]: cos and (sign-folded) sin, so that rotation is x·cos + swap_halves(x)·sin."""
    cos, sin = rope_halves(rope, length).unbind(1)
    table = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1)
    return table.to(device=device, dtype=dtype)


def rope_halves(rope: Rope, length: int) -> torch.Tensor:
    """Return float32 [length, 2, dims / 2]: cosines and sines, for the C and Triton kernels."""
    angles = torch.outer(torch.arange(length).float(), inverse_frequencies(rope))
    return torch.stack((angles.cos(), angles.sin()), 1) * rope.amplitude


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first dimensions of x [tokens, heads, head_dim], as many as there are in cos and sin
    [tokens, 1, dims] of `rope_tables`, into a new tensor."""
    dims = cos.shape[-1]
    turned, half = x[..., :dims], dims // 2
    swapped = torch.cat((turned[..., half:], turned[..., :half]), -1)
    out = torch.addcmul(turned * cos, swapped, sin)
    return out if dims == x.shape[-1] else torch.cat((out, x[..., dims:]), -1)
