"""Two probes of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

_PROBE_SECONDS = 0.15


def probe(seconds: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Return bytes per second that a read of memory reaches, and operations per second of a product with 32 rows.

    seconds: the clock that steps are timed with: what is carried over by a probe must be in its seconds
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = torch.ones(16 << 20, device=device)
    rows, weights = torch.ones(32, 1024, device=device), torch.ones(1024, 4096, device=device)
    return {
        "read": data.nbytes / _best(lambda: data.sum(), device, seconds),
        "gemm": 2 * 32 * 1024 * 4096 / _best(lambda: rows @ weights, device, seconds),
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
