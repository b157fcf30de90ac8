"""Rotary position embedding (Su et al., arXiv 2104.09864), in Hugging Face's half-split layout."""

from __future__ import annotations

import math

import torch

from serving.models.config import ModelConfig


def inverse_frequencies(config: ModelConfig) -> torch.Tensor:
    """Return float32 [head_dim / 2], with Llama 3.1's scaling where the config asks for it."""
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    inverse = 1.0 / (config.rope_theta**exponent)
    scaling = config.rope_scaling
    if scaling is None:
        return inverse
    low_wavelength = scaling.original_max_position / scaling.low_freq_factor
    high_wavelength = scaling.original_max_position / scaling.high_freq_factor
    wavelength = 2 * math.pi / inverse
    smooth = (scaling.original_max_position / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - smooth) * inverse / scaling.factor + smooth * inverse
    scaled = torch.where(wavelength > low_wavelength, inverse / scaling.factor, blended)
    return torch.where(wavelength < high_wavelength, inverse, scaled)


def rope_tables(config: ModelConfig, length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return [length, 2, head_dim]: cos and (sign-folded) sin, so that rotation is x·cos + swap_halves(x)·sin."""
    angles = torch.outer(torch.arange(length).float(), inverse_frequencies(config))
    cos, sin = angles.cos(), angles.sin()
    table = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1)
    return table.to(device=device, dtype=dtype)


def rope_halves(config: ModelConfig, length: int) -> torch.Tensor:
    """Return float32 [length, 2, head_dim / 2]: cosines and sines, for the C kernels."""
    angles = torch.outer(torch.arange(length).float(), inverse_frequencies(config))
    return torch.stack((angles.cos(), angles.sin()), 1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [tokens, heads, head_dim] by cos and sin [tokens, 1, head_dim] of `rope_tables` into a new tensor."""
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), -1)
    return torch.addcmul(x * cos, swapped, sin)
