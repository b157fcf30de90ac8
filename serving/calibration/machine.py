"""Two probes of the machine."""

from __future__ import annotations

import time

import torch

_PROBE_SECONDS = 0.15


def probe() -> dict[str, float]:
    """Return bytes per second that a read of memory reaches, and operations per second of a product with 32 rows."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = torch.ones(16 << 20, device=device)
    rows, weights = torch.ones(32, 1024, device=device), torch.ones(1024, 4096, device=device)
    return {
        "read": data.nbytes / _best(lambda: data.sum(), device),
        "gemm": 2 * 32 * 1024 * 4096 / _best(lambda: rows @ weights, device),
    }


def _best(run: object, device: torch.device) -> float:
    """Return the shortest of the times that fit into _PROBE_SECONDS."""
    assert callable(run)
    best, until = float("inf"), time.perf_counter() + _PROBE_SECONDS
    while (began := time.perf_counter()) < until:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return best
