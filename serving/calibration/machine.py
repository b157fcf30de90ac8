"""Two probes of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

_PROBE_SECONDS = 0.15
# By device: bytes that no cache holds; the side of a square product, whose numbers caches hold, so that memory does not
# bound it, and which is large enough for its start not to count; and its type.
_BYTES = {"cpu": 64 << 20, "cuda": 512 << 20}
_SIDE = {"cpu": 512, "cuda": 4096}
_DTYPE = {"cpu": torch.float32, "cuda": torch.bfloat16}


def probe(seconds: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Return bytes per second that a read of memory reaches, and operations per second of a product.

    seconds: the clock that steps are timed with: what is carried over by a probe must be in its seconds
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    side, dtype = _SIDE[device.type], _DTYPE[device.type]
    data = torch.ones(_BYTES[device.type] // 4, device=device)
    square = torch.ones(side, side, device=device, dtype=dtype)
    return {
        "read": data.nbytes / _best(lambda: data.sum(), device, seconds),
        "gemm": 2 * side**3 / _best(lambda: square @ square, device, seconds),
    }


def _best(run: Callable[[], object], device: torch.device, seconds: Callable[[], float]) -> float:
    """Return the shortest of the times that fit into _PROBE_SECONDS, the first left out: it touches new memory."""
    run()
    best, until = float("inf"), seconds() + _PROBE_SECONDS
    while (began := seconds()) < until:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, seconds() - began)
    return best
