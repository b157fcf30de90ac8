"""The rotary embedding of a GGUF file, as config.json says it.

Llama 3.1 and later stretch long wavelengths. A GGUF file does not say by which numbers, but holds what came of them:
`rope_freqs.weight`, what each frequency is divided by. The numbers are found again, and must give the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from serving.models.rope import inverse_frequencies
from serving.models.rope_config import Llama3Scaling, Rope

ROPE_FREQS = "rope_freqs.weight"
_PREFIX = "llama.rope.scaling."
_KNOWN = ("type", "factor", "original_context_length", "finetuned")
_LENGTHS = tuple(2**power for power in range(10, 21))  # tokens of a first training
_LOW, _HIGH = 1.0, 4.0  # of all Llama 3 models


def rope_scaling(
    fields: dict[str, Any], divisors: npt.NDArray[np.float32] | None, *, theta: float, dims: int
) -> dict[str, Any] | None:
    """Return config.json's `rope_scaling`, None where nothing is scaled.

    divisors: float32 [dims / 2], the tensor `rope_freqs.weight`; None: the file has none

    Raises ValueError naming the key or tensor that says something else than a Llama's scaling.
    """
    kind = fields.get(f"{_PREFIX}type") or "none"
    factor = float(fields.get(f"{_PREFIX}factor") or 1.0)
    for name, value in fields.items():
        if name.startswith(_PREFIX) and value and name.removeprefix(_PREFIX) not in _KNOWN:
            raise ValueError(f"{name} is not supported")
    if divisors is not None and not np.all(divisors == 1.0):
        if kind != "none":
            raise ValueError(f"{_PREFIX}type {kind!r} beside {ROPE_FREQS}: one of the two must be wrong")
        return _llama3(fields, divisors, theta=theta, dims=dims)
    if kind == "none":
        return None
    if kind != "linear":
        raise ValueError(f"{_PREFIX}type {kind!r} is not supported: only linear is")
    return {"rope_type": "linear", "factor": factor} if factor != 1.0 else None


def _llama3(fields: dict[str, Any], divisors: npt.NDArray[np.float32], *, theta: float, dims: int) -> dict[str, Any]:
    if divisors.shape != (dims // 2,):
        raise ValueError(f"{ROPE_FREQS} has the shape {divisors.shape}, not ({dims // 2},)")
    factor = float(divisors.max())
    plain = inverse_frequencies(Rope(theta, dims))
    told = fields.get(f"{_PREFIX}original_context_length")
    for length in _LENGTHS if not told else (int(told),):
        found = Llama3Scaling(factor, _LOW, _HIGH, length)
        if np.allclose(plain / inverse_frequencies(Rope(theta, dims, found)), divisors, rtol=1e-3):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": _LOW,
                "high_freq_factor": _HIGH,
                "original_max_position_embeddings": length,
            }
    raise ValueError(f"{ROPE_FREQS} does not divide frequencies as Llama 3.1 and later do")
