"""Every weight must be finite, and no factor or update may be absurdly large."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from sealed_weights.errors import IntakeError
from sealed_weights.intake.safetensors_header import TensorInfo

# A 4096 x 4096 projection with standard deviation 0.02 has Frobenius norm 82; trained updates stay below a few per cent
# of it, and spectral initialisations put factors near the root of the leading singular values. A thousand times more
# than either is a fault or an attack on half precision, not training.
MAX_FACTOR_NORM = 1e4
MAX_UPDATE_NORM = 1e5

_BLOCK_VALUES = 1 << 20  # 8 MiB of float64 at a time: the check must not double the memory of the adapter
_STORED: dict[str, npt.DTypeLike] = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def checked_norm(name: str, data: memoryview, info: TensorInfo) -> float:
    """Return the Frobenius norm of the tensor at `data[info.start:info.end]`.

    Raises `IntakeError` for a NaN or infinity, or a norm over `MAX_FACTOR_NORM`.
    """
    stored = np.frombuffer(data[info.start : info.end], dtype=_STORED[info.dtype])
    total = 0.0
    for start in range(0, stored.size, _BLOCK_VALUES):
        values = _as_float64(stored[start : start + _BLOCK_VALUES], info.dtype)
        # In float64 the square of any float32 is finite, so the sum is finite exactly when every value is.
        total += float(np.dot(values, values))
        if not math.isfinite(total):
            raise IntakeError(name, "values must all be finite (no NaN, no infinity)")
    norm = math.sqrt(total)
    if norm > MAX_FACTOR_NORM:
        raise IntakeError(name, f"Frobenius norm must be at most {MAX_FACTOR_NORM:g}")
    return norm


def _as_float64(stored: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float64]:
    if dtype == "BF16":  # numpy has no bfloat16: it is the upper half of a float32
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float64)
