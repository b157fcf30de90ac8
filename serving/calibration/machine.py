"""The subject of a calibration: the machine, the model, the replica's sizes; and two probes of the machine."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from serving.config import ServingConfig
from serving.cores import available_cores
from serving.engine import Engine
from serving.replica import Base, block_bytes, choose_device, served_dtype
from serving.runner import keeps_eight_bits
from serving.sizing import weight_bytes

_PROBE_SECONDS = 0.15


def about(config: ServingConfig, base: Base, engine: Engine) -> dict[str, object]:
    """Return plain values: the machine, the model's sizes in bytes and units, the replica's limits."""
    planner, pool, model = engine.planner, engine.adapters.pool, base.config
    device = choose_device(config.device)
    blocks = planner.pool
    limits = planner.limits
    eight_bits = config.dtype == "int8" or keeps_eight_bits(model, device)
    return {
        "machine": {
            "cpu": _cpu(),
            "cores": available_cores(),
            "threads": config.thread_count,
            "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        "model": {
            "name": config.model.name,
            "fingerprint": base.fingerprint,
            "dtype": config.dtype if config.dtype == "int8" else served_dtype(config),
            "layers": model.num_layers,
            "weight_bytes": weight_bytes(model, 2, eight_bits=eight_bits),
            "block_bytes": block_bytes(config, model),
            "max_len": engine.max_model_len,
            "hidden": model.hidden_size,
            "kv_heads": model.num_kv_heads,
        },
        "replica": {
            "max_batched_tokens": limits.max_batched_tokens,
            "max_num_seqs": limits.max_num_seqs,
            "max_queue": limits.max_queue,
            "min_prefill_tokens": limits.min_prefill_tokens,
            "block_size": blocks.block_size,
            "blocks": blocks.limit,
            "slots": pool.num_slots,
            "pages": engine.adapters.pool.num_pages,
            "page_bytes": engine.adapters.page_bytes,
            "workers": config.adapter_workers,
            "load_pause": engine.adapters.gate.load_pause,
            "depth": engine.runner.depth,
        },
    }


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


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(names, platform.machine())
