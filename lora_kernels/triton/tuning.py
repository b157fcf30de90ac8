"""Launch sizes of each site: read from configs/<GPU>.json, else from configs/default.json.

A file is written by `python -m benchmarks.kernels.gpu_sweep`. Fields that fix the order of a sum (`split`, `inner`)
depend on the site's shape alone, never on the batch: a row's bits do not depend on its company.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources

import torch

from lora_kernels.spec import SiteSpec

# The chunks of K begin at multiples of this: one step of the widest BLOCK_K.
CHUNK_ALIGN = 128
# A chunk shorter than this is all start-up: at 256 elements a page's chunk is 8 KiB, two cp.async stages.
MIN_CHUNK = 256
MAX_SPLIT = 16


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched: its block (of K, or of columns), warps, pipeline stages and programs per processor."""

    block: int
    warps: int
    stages: int
    programs: int

    def __post_init__(self) -> None:
        if self.block not in (32, 64, 128, 256) or self.warps not in (1, 2, 4, 8):
            raise ValueError(f"block must be 32 to 256 and warps 1 to 8, powers of two, got {self}")
        if not (1 <= self.stages <= 8 and 1 <= self.programs <= 32):
            raise ValueError(f"stages must be 1 to 8 and programs 1 to 32, got {self}")


@dataclass(frozen=True)
class SiteConfig:
    """Launch sizes of one site, for tiles of 16 rows (decode) and of 64 (prefill).

    split: chunks of K, summed apart; inner: chunks to a group (see tile.py)
    pdl: programmatic dependent launch (compute capability 9.0 and later; ignored elsewhere)
    """

    split: int
    inner: int
    shrink: Launch = Launch(block=128, warps=4, stages=3, programs=4)
    expand: Launch = Launch(block=128, warps=4, stages=2, programs=6)  # 80 to 168 registers: 3 to 6 fit a processor
    # Blocks of 32: wider ones spill a register or two with one slice (Triton 3.9, sm_90).
    prefill_shrink: Launch = Launch(block=32, warps=4, stages=4, programs=3)
    prefill_expand: Launch = Launch(block=128, warps=4, stages=2, programs=3)
    pdl: bool = True

    def __post_init__(self) -> None:
        if self.split < 1 or self.inner < 1 or self.split % self.inner:
            raise ValueError(f"inner must divide split, got {self.inner} and {self.split}")
        for launch in (self.shrink, self.prefill_shrink):
            if CHUNK_ALIGN % launch.block:
                raise ValueError(f"a shrink block must divide {CHUNK_ALIGN}, got {launch.block}")

    def chunk(self, k: int) -> int:
        """Elements of K in a chunk: a multiple of CHUNK_ALIGN, the last chunks shorter or empty."""
        return -(-k // (self.split * CHUNK_ALIGN)) * CHUNK_ALIGN


_override: SiteConfig | None = None


def config_for(site: SiteSpec, device: torch.device) -> SiteConfig:
    """Launch sizes for a site on a device. Raises ValueError for a file that makes no sense."""
    if _override is not None:
        return _override
    return configured(site.in_features, site.slices, _device_name(device))


@contextmanager
def using(config: SiteConfig) -> Iterator[None]:
    """Every launch inside takes `config`: for the sweep and for tests. Not thread-safe."""
    global _override
    before, _override = _override, config
    try:
        yield
    finally:
        _override = before


def untuned(k: int) -> SiteConfig:
    """A sane configuration for a K that nobody has measured."""
    split = 1
    while split < MAX_SPLIT and k >= 2 * split * MIN_CHUNK:
        split *= 2
    return SiteConfig(split=split, inner=min(4, split))


def site_key(k: int, slices: tuple[int, ...]) -> str:
    """The name of a site's shape in a file, such as "4096->4096+1024+1024"."""
    return f"{k}->{'+'.join(map(str, slices))}"


def file_name(device_name: str) -> str:
    """The file that holds a GPU's configurations, such as "NVIDIA_H200.json"."""
    return re.sub(r"\W+", "_", device_name) + ".json"


def processors(device: torch.device) -> int:
    """Streaming multiprocessors; 2 under the interpreter, so that its programs stride too."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def may_launch_dependents(device: torch.device) -> bool:
    """Whether the device has programmatic dependent launch: Hopper and later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def configured(k: int, slices: tuple[int, ...], device_name: str) -> SiteConfig:
    """Launch sizes for a shape on a GPU of that name, whether or not it is here."""
    data = _read(file_name(device_name)) or _read("default.json") or {}
    changes = {**data.get("default", {}), **data.get("sites", {}).get(site_key(k, slices), {})}
    return parse_config(untuned(k), changes)


def parse_config(base: SiteConfig, changes: dict[str, object]) -> SiteConfig:
    """`base` with the fields a file names; launches may be given in part. Raises ValueError for an unknown field."""
    known = {field.name for field in fields(SiteConfig)}
    parsed: dict[str, object] = {}
    for name, value in changes.items():
        if name not in known:
            raise ValueError(f"unknown field {name!r} of a launch configuration")
        parsed[name] = replace(getattr(base, name), **value) if isinstance(value, dict) else value
    return replace(base, **parsed)  # type: ignore[arg-type]


def _read(name: str) -> dict[str, dict[str, dict[str, object]]] | None:
    path = resources.files("lora_kernels.triton.configs") / name
    return json.loads(path.read_text()) if path.is_file() else None


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreter"
