"""The state of the machine before a run: device, driver, versions, clocks, free memory, and which peers are there."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass
from typing import Any

# Without these nothing runs; without those a check or a peer is left out.
NEEDED = ("torch", "triton", "numpy", "safetensors")
OPTIONAL = {
    "pytest": "the LoRA kernels' and the staging tests",
    "transformers": "the runner's cases, the PEFT peer",
    "tokenizers": "the runner's cases",
    "peft": "the runner's cases, the PEFT peer",
    "pydantic": "SGLang's triton_v2",
}
WHEELS = {"VLLM_WHEEL": "vLLM's LoRA kernels", "SGLANG_WHEEL": "SGLang's LoRA kernels (csgmv, triton_v2)"}
PROFILERS = ("ncu", "nsys", "compute-sanitizer")
QUERY = (
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "clocks.max.mem",
    "power.limit",
    "temperature.gpu",
    "ecc.mode.current",
    "persistence_mode",
)


@dataclass(frozen=True)
class Preflight:
    """Plain values, ready for JSON. `cuda` is None where there is no CUDA device, and `cuda_reason` says why."""

    python: str
    versions: dict[str, str | None]
    wheels: dict[str, str | None]
    profilers: dict[str, str | None]
    cuda: dict[str, Any] | None
    cuda_reason: str
    clocks: dict[str, str]
    switches: dict[str, str]

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the needed packages that are not installed."""
        return tuple(name for name in NEEDED if self.versions[name] is None)

    def lines(self) -> list[tuple[str, str]]:
        """Return the table: what, and its value."""
        found = [("python", self.python)]
        if self.cuda is None:
            found.append(("CUDA device", f"none: {self.cuda_reason}"))
        else:
            found += [(name.replace("_", " "), str(value)) for name, value in self.cuda.items()]
        found += list(self.clocks.items())
        for name, version in self.versions.items():
            without = f"not found: without it no {OPTIONAL[name]}" if name in OPTIONAL else "MISSING, and needed"
            found.append((name, version or without))
        found += [(f"${name}", value or f"not set: {WHEELS[name]} are left out") for name, value in self.wheels.items()]
        found += [(name, path or "not found") for name, path in self.profilers.items()]
        return found + list(self.switches.items())

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)


def look() -> Preflight:
    """Look at this machine. Never raises: what cannot be asked is reported as such."""
    cuda, reason = _cuda()
    return Preflight(
        platform.python_version(),
        {name: _version(name) for name in (*NEEDED, *OPTIONAL)},
        {name: os.environ.get(name) for name in WHEELS},
        {name: shutil.which(name) for name in PROFILERS},
        cuda,
        reason,
        _clocks() if cuda else {},
        {name: value for name, value in os.environ.items() if name.startswith(("CUDA_", "TRITON_", "PYTORCH_"))},
    )


def _version(name: str) -> str | None:
    try:
        if importlib.util.find_spec(name) is None:
            return None
    except (ImportError, ValueError):
        return None
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def _cuda() -> tuple[dict[str, Any] | None, str]:
    try:
        import torch

        if not torch.cuda.is_available():
            built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
            return None, f"torch {torch.__version__} ({built}) sees no device"
        properties = torch.cuda.get_device_properties(0)
        free, whole = torch.cuda.mem_get_info(0)
        return {
            "CUDA_device": properties.name,
            "CUDA": torch.version.cuda,
            "capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
            "processors": properties.multi_processor_count,
            "L2_MiB": getattr(properties, "L2_cache_size", 0) >> 20,
            "memory_GiB": round(whole / 2**30, 1),
            "free_GiB": round(free / 2**30, 1),
            "devices": torch.cuda.device_count(),
        }, ""
    except Exception as error:  # a broken driver raises whatever it likes
        return None, f"{type(error).__name__}: {str(error)[:300]}"


def _clocks() -> dict[str, str]:
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return {"clocks": f"unknown: {type(error).__name__}"}
    return dict(zip(QUERY, (value.strip() for value in done.stdout.split(",")), strict=False))
