"""The time that `python -m capacity plan` takes: four kinds of accelerators, two bases, three classes, made twice.

Profiles of three of the kinds are made up: a calibrated one, carried over to probes that are up to four times as fast.
Demand is invented, too. What is judged is the time, and that the same inputs give the same bytes.
"""

from __future__ import annotations

import hashlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from capacity.profile import Profile
from capacity.steps import Probes, transfer

_WEEKS = 5
# Kind → (times the bandwidth, times the products, dollars an hour).
_KINDS = {
    "as-measured": (1.0, 1.0, "0.06"),
    "quick-reads": (2.0, 1.5, "0.10"),
    "quick-products": (1.5, 3.0, "0.11"),
    "quick": (4.0, 4.0, "0.21"),
}
# Class → (calls in a busy hour, most prompt tokens, most output tokens, seconds to the first token, per token).
_CLASSES = {
    "interactive": (40_000, 200, 48, 2.0, 0.2),
    "standard": (25_000, 320, 32, 6.0, 0.4),
    "batch": (10_000, 480, 64, 60.0, 1.0),
}


def timed(profiles: Mapping[str, Profile], workers: int = 2) -> dict[str, Any]:
    """Return the seconds of a plan, of the wall and of processors, and whether a second one has the same bytes.

    profiles: base → its calibrated profile. Raises CalledProcessError where no plan is made.
    """
    found = []
    with tempfile.TemporaryDirectory(prefix="intarsia-plan-") as folder:
        command = [sys.executable, "-m", "capacity", "plan", *_files(Path(folder), profiles)]
        command += ["--today", "2026-11-10", "--workers", f"{workers}", "--json", "--quiet"]
        for _ in range(2):
            began, used = time.perf_counter(), _processor_seconds()
            made = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            found.append((time.perf_counter() - began, _processor_seconds() - used, hashlib.sha256(made).hexdigest()))
    return {
        "bases": len(profiles),
        "kinds": len(_KINDS),
        "classes": len(_CLASSES),
        "workers": workers,
        "wall_s": [one[0] for one in found],
        "processor_s": [one[1] for one in found],
        "same_bytes": found[0][2] == found[1][2],
    }


def _processor_seconds() -> float:
    """Return the seconds of children that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _files(folder: Path, profiles: Mapping[str, Profile]) -> list[str]:
    """Write what the command reads and return its flags."""
    flags = []
    for name, content in (
        ("usage.json", msgspec.json.encode(_usage(list(profiles)))),
        ("catalogue.toml", _catalogue().encode()),
        ("prices.toml", _prices().encode()),
        ("promises.toml", _promises().encode()),
    ):
        (folder / name).write_bytes(content)
        flags += [f"--{name.partition('.')[0]}", str(folder / name)]
    for place, (base, profile) in enumerate(profiles.items()):
        for kind in _KINDS:
            file = folder / f"{kind}-{place}.json"
            file.write_bytes(msgspec.json.encode(_carried(base, profile, kind)))
            flags += ["--profile", f"{kind}={file}"]
    return flags


def _carried(base: str, profile: Profile, kind: str) -> Profile:
    read, product, _ = _KINDS[kind]
    there = Probes(profile.probe_read * read, profile.probe_gemm * product)
    return msgspec.structs.replace(
        profile,
        model=msgspec.structs.replace(profile.model, fingerprint=base),
        coefficients=dict(transfer(profile.steps, profile.probes, there).coefficients),
        probe_read=there.read,
        probe_gemm=there.gemm,
    )


def _usage(bases: Sequence[str]) -> dict[str, Any]:
    hours = _WEEKS * 168
    chance = np.random.default_rng(7)
    day = 0.6 + 0.4 * np.sin((np.arange(hours) % 24 - 8) / 24 * 2 * np.pi)
    made = {}
    for base in bases:
        classes, shapes = {}, {}
        for name, (calls, prompt, output, _, _) in _CLASSES.items():
            classes[name] = {"served": chance.poisson(calls * day).tolist(), "refused": [0] * hours}
            lengths = zip(chance.integers(32, prompt, 200), chance.integers(4, output, 200), strict=True)
            shapes[name] = [(int(one), int(one // 2), int(other)) for one, other in lengths]
        made[base] = {
            "name": base[:8],
            "classes": classes,
            "shapes": shapes,
            "gap_cv2": dict.fromkeys(_CLASSES, 1.3),
            "popularity": [(10_000 // (n + 1) + 1, 16) for n in range(200)],
            "bare_calls": 2_000,
            "revenue_nano_usd": 900_000_000_000,
        }
    start = "2026-10-01T00:00:00+00:00"
    return {"format": 1, "start": start, "hours": hours, "days_of_revenue": 28, "bases": made}


def _catalogue() -> str:
    """Return accelerators of which nothing is used but the names: each has a profile."""
    return "\n".join(
        f'[[accelerator]]\nname = "{kind}"\nmemory_gb = 24\nbandwidth_tb_s = 0.3\ntflops_bf16 = 121\nwatts = 72\n'
        'dense = true\nsource = "an invented figure"\ndate = 2026-11-01'
        for kind in _KINDS
    )


def _prices() -> str:
    offers = ['currency = "USD"']
    for kind, (_, _, hourly) in _KINDS.items():
        offers.append(
            f'[[price]]\nname = "{kind}"\naccelerator = "{kind}"\nhourly = "{hourly}"\ncommitment = "on-demand"\n'
            'zone = "a"\nquota = 2000\nsource = "an invented figure"\ndate = 2026-11-01'
        )
    return "\n".join(offers) + "\n"


def _promises() -> str:
    lines = ["alpha = 0.95", "weeks = 1"]
    for name, (_, _, _, ttft, tpot) in _CLASSES.items():
        lines.append(f"[promises.{name}]\nttft = {ttft}\ntpot = {tpot}")
    return "\n".join(lines) + "\n"
