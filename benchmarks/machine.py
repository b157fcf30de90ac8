"""The machine a figure was measured on, as data."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

# What the kernels of this project or of its peers choose their code by.
INSTRUCTION_SETS = (
    "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16",
    "asimd", "bf16", "sve", "i8mm",
)  # fmt: skip


def describe() -> dict[str, object]:
    """CPU, memory, GPU, software and load right now: plain values, ready for JSON."""
    fields = _cpu_fields()
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return {
        "cpu": fields.get("model name") or platform.processor() or platform.machine(),
        "family_model_stepping": "/".join(fields.get(key, "?") for key in ("cpu family", "model", "stepping")),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "last_level_cache": fields.get("cache size"),
        "instruction_sets": [name for name in INSTRUCTION_SETS if name in flags],
        "memory_gib": _memory_gib(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "torch": torch.__version__,
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "load_1_5_15_min": [round(value, 2) for value in os.getloadavg()],
    }


def _cpu_fields() -> dict[str, str]:
    """Fields of the first processor in /proc/cpuinfo; none where there is no such file."""
    fields: dict[str, str] = {}
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return fields
    for line in text.split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    return fields


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None
