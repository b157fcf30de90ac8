"""The facts of a replica that a plan needs: its machine, the model's sizes, its limits; and their route."""

from __future__ import annotations

import platform
from collections import Counter
from pathlib import Path

import torch
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.config import ServingConfig
from serving.cores import available_cores
from serving.engine import Engine
from serving.http.errors import json_response
from serving.replica import Base, block_bytes, choose_device, served_dtype
from serving.runner import keeps_eight_bits
from serving.sizing import weight_bytes

PATH = "/about"


def about_route(config: ServingConfig, base: Base, engine: Engine) -> Route:
    """Return `GET /about`: what `about` returns, and how many resident adapters there are of each rank.

    For a replica of plain folders alone: whoever may call it may know its sizes.
    """
    facts = about(config, base, engine)

    async def tell(_: Request) -> Response:
        return json_response(facts | {"resident": resident_ranks(engine)})

    return Route(PATH, tell)


def resident_ranks(engine: Engine) -> dict[str, int]:
    """Return rank → number of adapters that are ready."""
    adapters = engine.adapters
    ready = [digest for digest in adapters.states() if adapters.is_ready(digest)]
    return dict(Counter(str(adapters.cost(digest).rank) for digest in ready))


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


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(names, platform.machine())
