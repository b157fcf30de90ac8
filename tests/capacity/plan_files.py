"""The files of a plan that needs no machine, and the flags of the command that makes it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tests.capacity.profiles import profile

FINGERPRINT = profile().model.fingerprint
START = datetime(2026, 10, 1, tzinfo=UTC)
PRICES = """
currency = "USD"
[[price]]
name = "this machine"
accelerator = "machine"
hourly = "0.15"
source = "an invented figure"
date = 2026-11-01
"""
CATALOGUE = """
[[accelerator]]
name = "machine"
memory_gb = 8
bandwidth_tb_s = 0.01
tflops_bf16 = 1
watts = 30
dense = true
source = "its probe"
date = 2026-11-01
"""
PROMISES = """
alpha = 0.9
weeks = 1
[promises.standard]
ttft = 2.0
tpot = 0.2
"""


def write_files(folder: Path) -> Path:
    """Write all files of a plan into a folder, and return it."""
    write_usage(folder, usage())
    (folder / "profile.json").write_bytes(msgspec.json.encode(profile()))
    for name, text in (("prices", PRICES), ("catalogue", CATALOGUE), ("promises", PROMISES)):
        (folder / f"{name}.toml").write_text(text)
    return folder


def plan_flags(folder: Path, *more: str) -> list[str]:
    """Return the command that makes a plan of these files, with little effort: what is tested is not how sure it is."""
    files = {name: str(folder / f"{name}.toml") for name in ("prices", "catalogue", "promises")}
    flags = [part for name, path in files.items() for part in (f"--{name}", path)]
    return [
        "plan",
        *("--usage", str(folder / "usage.json")),
        *("--profile", f"machine={folder / 'profile.json'}"),
        *flags,
        *("--requests", "60", "--seeds", "2", "--workers", "1", "--today", "2026-11-10", "--quiet"),
        *more,
    ]


def usage(weeks: float = 3, *, calls: float = 30_000.0, name: str = "small", refused: int = 0) -> dict[str, Any]:
    """Return a usage file of one base whose calls a busy hour are `calls`, with days and nights."""
    hours = int(weeks * 168)
    chance = np.random.default_rng(7)
    day = 0.6 + 0.4 * np.sin((np.arange(hours) % 24 - 8) / 24 * 2 * np.pi)
    served = chance.poisson(calls * day).tolist()
    shapes = [
        [int(prompt), int(prompt // 2), int(output)]
        for prompt, output in zip(chance.integers(32, 200, 200), chance.integers(2, 10, 200), strict=True)
    ]
    return {
        "format": 1,
        "start": START.isoformat(),
        "hours": hours,
        "days_of_revenue": 28,
        "bases": {
            FINGERPRINT: {
                "name": name,
                "classes": {"standard": {"served": served, "refused": [refused] * hours}},
                "shapes": {"standard": shapes},
                "gap_cv2": {"standard": 1.4},
                "popularity": [[100 // (n + 1) + 1, 16] for n in range(12)],
                "bare_calls": 20,
                "revenue_nano_usd": 900_000_000_000,
            }
        },
    }


def write_usage(folder: Path, data: dict[str, Any]) -> Path:
    """Write a usage file and return its path."""
    path = folder / "usage.json"
    path.write_text(json.dumps(data))
    return path
