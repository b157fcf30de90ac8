"""The machine that a figure was measured on, as data; the folder and the form of its results."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, TypeAlias

import torch

from capacity.profile import current_commit

# A result is shown in parts: a paragraph, lines as they are, or a table ({"head": [...], "rows": [[...]]}).
Part: TypeAlias = str | list[str] | dict[str, Any]
RESULTS = Path(__file__).parent / "results"
# The features by which the kernels of this project and of its peers choose their code, oldest first.
INSTRUCTION_SETS = (
    *("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16"),
    *("asimd", "bf16", "sve", "i8mm"),
)
# The newest of these that a processor has names its kind, unless its generation is known.
_NAMING_FEATURES = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "sve", "asimd")
# AMD's generations by CPU family, and whether the processor has AVX-512.
_AMD_GENERATIONS = {("23", False): "zen2", ("25", False): "zen3", ("25", True): "zen4", ("26", True): "zen5"}


def describe() -> dict[str, object]:
    """Return CPU, memory, GPU, software and current load as plain values, ready for JSON."""
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


def cpu_kind(about: Mapping[str, Any] | None = None) -> str:
    """Return the folder name for figures of this CPU, such as "zen4-2-cores"; `about` is a result of `describe`."""
    about = about or describe()
    features = about["instruction_sets"]
    family = str(about["family_model_stepping"]).partition("/")[0]
    newest = next((name.replace("_", "-") for name in _NAMING_FEATURES if name in features), about["architecture"])
    generation = _AMD_GENERATIONS.get((family, "avx512f" in features)) if "AMD" in about["cpu"] else None
    return f"{generation or newest}-{about['cores']}-cores"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> dict[str, Any]:
    """Return a part of a result that is shown as a table; cells become text."""
    return {"head": list(head), "rows": [[str(cell) for cell in row] for row in rows]}


def write_suite(folder: Path, suite: str, report: Mapping[str, Any], parts: Sequence[Part]) -> Path:
    """Write one suite's result into `folder`, which is created where necessary. Returns the file.

    report: what it was measured on, as "machine", and figures that other programs read; of this day and commit
    parts: what a reader is shown
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{suite}.json"
    made = {"date": date.today().isoformat(), "commit": current_commit()[:8]}
    write(file, {**report, **made, "parts": list(parts)})
    return file


def write(file: Path, result: Mapping[str, Any]) -> None:
    """Write a result as JSON, one line for each of its fields and for each row that is shown."""
    lines = [f" {_json(name)}: {_json(value)}" for name, value in result.items() if name != "parts"]
    parts = ",\n".join(f"  {_part(part)}" for part in result["parts"])
    file.write_text("{\n" + ",\n".join([*lines, f' "parts": [\n{parts}\n ]']) + "\n}\n", encoding="utf-8")


def _part(part: Part) -> str:
    if isinstance(part, str):
        return _json(part)
    if isinstance(part, list):
        return "[\n" + ",\n".join(f"   {_json(line)}" for line in part) + "\n  ]"
    rows = ",\n".join(f"   {_json(row)}" for row in part["rows"])
    return f'{{"head": {_json(part["head"])}, "rows": [\n{rows}\n  ]}}'


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cpu_fields() -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo; an empty dict where that file does not exist."""
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
