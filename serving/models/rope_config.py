"""The rotary embeddings that a config.json asks for, as `serving.models.rope` computes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sealed_weights.intake.architectures import FULL, SLIDING, Architecture


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's frequency scaling (`rope_type: "llama3"`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class Rope:
    """One rotary embedding of the first `dims` dimensions of each head.

    scaling: Llama 3.1's
    divisors: what frequencies are divided by: one number, or one for each of them (LongRoPE, arXiv 2402.13753)
    amplitude: what cosines and sines are multiplied by
    longest: texts of more tokens have other frequencies, which are not computed; None: there is no such length
    """

    theta: float
    dims: int
    scaling: Llama3Scaling | None = None
    divisors: tuple[float, ...] = ()
    amplitude: float = 1.0
    longest: int | None = None


def ropes_of(raw: dict[str, Any], family: Architecture, head_dim: int) -> tuple[Rope, Rope]:
    """Return the rotary embedding of layers without and with a window, most often the same one.

    Reads `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (earlier versions). Raises ValueError
    or KeyError naming the key.
    """
    written = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    by_kind = isinstance(written.get(FULL), dict)
    if by_kind and not family.local_rope:
        raise ValueError("rope_parameters: this family has one rotary embedding for all layers")
    everywhere = _rope(written[FULL] if by_kind else written, raw, family, head_dim)
    if not family.local_rope:
        return everywhere, everywhere
    own = (written.get(SLIDING) or {}) if by_kind else {}
    if (own.get("rope_type") or "default") != "default":
        raise ValueError(f"rope_parameters.{SLIDING}.rope_type {own['rope_type']!r}: only 'default' is computed")
    theta = float(own.get("rope_theta") or raw.get("rope_local_base_freq") or 10_000.0)
    return everywhere, Rope(theta, everywhere.dims)


def _rope(parameters: dict[str, Any], raw: dict[str, Any], family: Architecture, head_dim: int) -> Rope:
    theta = float(parameters.get("rope_theta") or raw.get("rope_theta") or family.theta)
    share = float(parameters.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0)
    dims = int(head_dim * share)
    if dims != head_dim and not family.partial_rotary:
        raise ValueError(f"partial_rotary_factor {share:g}: this family turns whole heads")
    if not 0 < dims <= head_dim or dims % 2:
        raise ValueError(f"partial_rotary_factor {share:g}: must leave an even number of dimensions of {head_dim}")
    kind = family.rope_kind(raw, parameters)
    if kind == "linear":
        return Rope(theta, dims, divisors=(float(parameters["factor"]),))
    if kind == "llama3":
        scaling = Llama3Scaling(
            float(parameters["factor"]),
            float(parameters["low_freq_factor"]),
            float(parameters["high_freq_factor"]),
            int(parameters["original_max_position_embeddings"]),
        )
        return Rope(theta, dims, scaling)
    if kind == "longrope":
        return _long(parameters, raw, theta, dims)
    return Rope(theta, dims)


def _long(parameters: dict[str, Any], raw: dict[str, Any], theta: float, dims: int) -> Rope:
    """Return LongRoPE as it is up to the length of the model's first training."""
    original = int(
        raw.get("original_max_position_embeddings")
        or parameters.get("original_max_position_embeddings")
        or raw["max_position_embeddings"]
    )
    divisors = tuple(float(one) for one in parameters["short_factor"])
    if len(divisors) != dims // 2 or not all(one > 0 for one in divisors):
        raise ValueError(f"short_factor must have {dims // 2} numbers above 0, one for each rotated pair")
    factor = float(parameters.get("factor") or int(raw["max_position_embeddings"]) / original)
    amplitude = parameters.get("attention_factor")
    if amplitude is None:
        amplitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return Rope(theta, dims, divisors=divisors, amplitude=float(amplitude), longest=original)
