"""Launch sizes of each site: read from configs/<GPU>.json, else from configs/default.json.

A file is written by the sweep of `python -m benchmarks.gpu`. Fields that fix the order of a sum (`split`, `inner`)
depend on the site's shape alone, never on the batch: a row's bits do not depend on its company.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from importlib import resources

import torch

from lora_kernels.ops import expand, shrink
from lora_kernels.ops.launch import INTERPRETED, SiteConfig, SitePlan
from lora_kernels.ops.triton_or_none import triton
from lora_kernels.spec import SiteSpec
from lora_kernels.storage.site import SiteStorage

_override: SiteConfig | None = None


def config_for(site: SiteSpec, device: torch.device) -> SiteConfig:
    """Return the launch sizes for a site on a device. Raises ValueError for a file that makes no sense."""
    if _override is not None:
        return _override
    return configured(site.in_features, site.slices, _device_name(device))


@contextmanager
def using(config: SiteConfig) -> Iterator[None]:
    """Make every launch inside take `config`: for the sweep and for tests. Not thread-safe."""
    global _override
    before, _override = _override, config
    try:
        yield
    finally:
        _override = before


def untuned(k: int, slices: int = 1) -> SiteConfig:
    """Return the configuration of a site that has not been measured: what the operations' files say."""
    split, inner = shrink.split_for(k)
    decode = shrink.DECODE if slices < 3 else shrink.DECODE_OF_THREE_SLICES
    return SiteConfig(split, inner, decode, expand.DECODE, shrink.PREFILL, expand.PREFILL)


def plan_for(storage: SiteStorage) -> SitePlan:
    """Return the plan of a site, made once unless the sweep or a test overrides the configuration."""
    device = storage.a.device
    config = config_for(storage.spec, device)
    plan = storage.cache.get("plan")
    if not isinstance(plan, SitePlan) or plan.config is not config:
        pdl = config.pdl and may_launch_dependents(device) and not INTERPRETED
        plan = new_plan(storage, config, processors(device), pdl=pdl)
        storage.cache["plan"] = plan
    return plan


def new_plan(storage: SiteStorage, config: SiteConfig, processors: int, *, pdl: bool) -> SitePlan:
    """Return the plan of a site on a GPU with so many processors, whether or not it is here."""
    ranks = triton.next_power_of_2(len(storage.spec.slices) * storage.page_size)
    return SitePlan(config, processors, pdl, ranks, math.gcd(16, *storage.offsets))


def site_key(k: int, slices: tuple[int, ...]) -> str:
    """Return the name of a site's shape in a file, such as "4096->4096+1024+1024"."""
    return f"{k}->{'+'.join(map(str, slices))}"


def file_name(device_name: str) -> str:
    """Return the name of the file that holds a GPU's configurations, such as "NVIDIA_H200.json"."""
    return re.sub(r"\W+", "_", device_name) + ".json"


def processors(device: torch.device) -> int:
    """Return the streaming multiprocessors; 2 under the interpreter, so that its programs stride too."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def may_launch_dependents(device: torch.device) -> bool:
    """Return whether the device has programmatic dependent launch: Hopper and later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def configured(k: int, slices: tuple[int, ...], device_name: str) -> SiteConfig:
    """Return the launch sizes for a shape on a GPU of that name, whether or not it is here."""
    data = _read(file_name(device_name)) or _read("default.json") or {}
    changes = {**data.get("default", {}), **data.get("sites", {}).get(site_key(k, slices), {})}
    return parse_config(untuned(k, len(slices)), changes)


def parse_config(base: SiteConfig, changes: dict[str, object]) -> SiteConfig:
    """Return `base` with the fields a file names; launches may be given in part.

    Raises ValueError for an unknown field.
    """
    known = {field.name for field in fields(SiteConfig)}
    parsed: dict[str, object] = {}
    for name, value in changes.items():
        if name not in known:
            raise ValueError(f"unknown field {name!r} of a launch configuration")
        parsed[name] = replace(getattr(base, name), **value) if isinstance(value, dict) else value
    return replace(base, **parsed)  # type: ignore[arg-type]


def _read(name: str) -> dict[str, dict[str, dict[str, object]]] | None:
    path = resources.files("lora_kernels.ops.configs") / name
    return json.loads(path.read_text()) if path.is_file() else None


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreter"
