"""A profile and usage files that need no machine: figures as small replicas have them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from capacity.profile import Machine, Model, Profile, Quality, Replica
from capacity.steps import KNOTS, PRIOR

FINGERPRINT = "ab" * 32
START = datetime(2026, 10, 1, tzinfo=UTC)


def profile(**changes: Any) -> Profile:
    """Return a profile of a small replica with the prior's step times."""
    fields: dict[str, Any] = {
        "made_at": "2026-11-01T00:00:00+00:00",
        "commit": "",
        "own_clock": False,
        "machine": Machine(cpu="a processor", cores=2, threads=2, gpu=None, torch="2.13.0", python="3.11"),
        "model": Model(
            name="small",
            fingerprint=FINGERPRINT,
            dtype="bfloat16",
            layers=30,
            weight_bytes=270_000_000,
            block_bytes=16 * 23_040,
            max_len=2048,
            hidden=576,
            kv_heads=3,
        ),
        "replica": Replica(
            max_batched_tokens=512,
            max_num_seqs=16,
            max_queue=512,
            min_prefill_tokens=64,
            block_size=16,
            blocks=2000,
            slots=8,
            pages=8,
            page_bytes=2_500_000,
            workers=1,
            load_pause=0.0,
            depth=0,
        ),
        "coefficients": dict(PRIOR),
        "shape": (0.0,) * len(KNOTS),
        "residuals": (-0.05, 0.0, 0.05),
        "load_seconds": (0.05, 0.06),
        "load_speed": 1.0,
        "probe_read": 10e9,
        "probe_gemm": 100e9,
        "quality": Quality(steps=200, median=0.02, p90=0.06),
    }
    return Profile(**(fields | changes))


def usage(weeks: float = 5, *, calls: float = 400.0, name: str = "small", refused: int = 0) -> dict[str, Any]:
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
