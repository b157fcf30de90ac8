"""The sketch of an adapter's weight updates, computed in the confined child that verifies it.

Every number is a sum over modules of uᵀ ΔW v, with u and v of signs that follow from the module's path alone, so that
ΔW = scale · B · A is never formed and each layout of the same ΔW gives the same numbers: other factors (B·R, R⁻¹·A),
other scales, permuted or padded ranks. An update counts by the root of its size, so that neither one large module nor
many tiny ones hide the others. A group of modules has 64 numbers of its own: leaving out one changes no other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from protocol.lineage import GROUPS, NUMBERS
from sealed_weights import AdapterLayout

_GROUP_OF = {"q_proj": 0, "k_proj": 0, "v_proj": 1, "o_proj": 1, "gate_proj": 2, "up_proj": 2}
_FULL = 42.0  # of int8: the root mean square of a group's numbers; three times as much is clipped
Matrix = npt.NDArray[np.float64]


def sketch_of(layout: AdapterLayout, data: memoryview) -> bytes:
    """Return 256 numbers, int8: four groups of 64, each normalised; zeros for a group without an update."""
    sums = np.zeros((GROUPS, NUMBERS), np.float64)
    for path, scale in layout.summary.scales.items():
        factors = {name: _matrix(layout, data, path, name) for name in "AB"}
        sums[_GROUP_OF.get(path.rsplit(".", 1)[-1], GROUPS - 1)] += _project(path, factors, scale)
    size = np.sqrt((sums**2).mean(axis=1, keepdims=True))
    unit = np.divide(sums, size, out=np.zeros_like(sums), where=size > 0)
    return np.clip(np.rint(unit * _FULL), -127, 127).astype(np.int8).tobytes()


def _project(path: str, factors: Mapping[str, Matrix], scale: float) -> npt.NDArray[np.float64]:
    """Return uᵀ ΔW v for the module's 64 pairs, divided by the root of the norm of ΔW."""
    a, b = factors["A"], factors["B"]
    # ‖B A‖² = Σ (Bᵀ B) ∘ (A Aᵀ): of two matrices of rank by rank.
    norm = abs(scale) * np.sqrt(max(0.0, float(((b.T @ b) * (a @ a.T)).sum())))
    if norm == 0.0:
        return np.zeros(NUMBERS)
    signs = _signs(path, NUMBERS * (a.shape[1] + b.shape[0]))
    right = signs[: NUMBERS * a.shape[1]].reshape(a.shape[1], NUMBERS)
    left = signs[NUMBERS * a.shape[1] :].reshape(b.shape[0], NUMBERS)
    products: npt.NDArray[np.float64] = ((b.T @ left) * (a @ right)).sum(axis=0)
    return products * (scale / np.sqrt(norm))


def _signs(path: str, count: int) -> Matrix:
    """Return +1 and -1, always the same for a path on every machine: SHAKE-256 of it, bit by bit."""
    bits = np.frombuffer(hashlib.shake_256(f"intarsia/sketch/1/{path}".encode()).digest(-(-count // 8)), np.uint8)
    return np.unpackbits(bits)[:count].astype(np.float64) * 2 - 1


def _matrix(layout: AdapterLayout, data: memoryview, path: str, factor: str) -> Matrix:
    info = layout.tensors[f"base_model.model.{path}.lora_{factor}.weight"]
    stored = np.frombuffer(data[info.start : info.end], {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[info.dtype])
    if info.dtype == "BF16":  # numpy has no bfloat16: it is the upper half of a float32
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float64).reshape(info.shape)
