"""Stage: the launch sizes of the LoRA kernels on this card, written into lora_kernels/ops/configs/<GPU>.json.

One field after another, from the default on, each kept when it lowers the geometric mean of the site's decode points by
more than a hundredth. Fields that fix the order of a sum (split, inner) are swept first, for all batches together.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks import machine
from benchmarks.gpu import records
from benchmarks.gpu.contenders import ours
from benchmarks.gpu.grid import SITES, GpuPoint, make_inputs
from benchmarks.gpu.peers import check
from benchmarks.gpu.stages import SECONDS
from benchmarks.gpu.timing import graph_seconds
from lora_kernels.ops import configs, tuning
from lora_kernels.ops.launch import Launch, SiteConfig

# The cases that decide: one adapter, many, and both kinds of rank.
POINTS = ((1, "one", "16"), (8, "distinct", "16"), (32, "distinct", "mixed"), (256, "zipf", "mixed"))
GAIN = 0.99
SPLITS = ((4, 4), (8, 4), (16, 4), (32, 4))


def candidates(config: SiteConfig) -> Iterator[SiteConfig]:
    """Neighbours of a configuration, one field changed, the order of sums first; senseless ones left out."""
    for split, inner in SPLITS:
        if split != config.split:
            yield replace(config, split=split, inner=inner)
    for kernel, blocks in (("shrink", (64, 128)), ("expand", (64, 128, 256))):
        launch: Launch = getattr(config, kernel)
        for name, values in (
            ("block", blocks),
            ("warps", (2, 4, 8)),
            ("stages", (2, 3, 4)),
            ("programs", (1, 2, 3, 4, 6, 8)),
        ):
            for value in values:
                if value != getattr(launch, name):
                    yield replace(config, **{kernel: replace(launch, **{name: value})})  # type: ignore[arg-type]
    yield replace(config, pdl=not config.pdl)


def sweep_site(site: str, seed: int, deadline: float) -> tuple[SiteConfig, float, float]:
    """The best configuration found, its microseconds and the default's (geometric means over POINTS)."""
    inputs = [make_inputs(GpuPoint(site, *point), seed, torch.device("cuda")) for point in POINTS]
    calls = [ours(one) for one in inputs]

    def microseconds(config: SiteConfig) -> float:
        times = []
        with tuning.using(config):
            for one, call in zip(inputs, calls, strict=True):
                check("ours", call, one)
                times.append(1e6 * graph_seconds(lambda layer: call(layer, one.y), one.layers))  # noqa: B023
        return statistics.geometric_mean(times)

    best = tuning.untuned(SITES[site].in_features, len(SITES[site].slices))
    first = least = microseconds(best)
    improved = True
    while improved and time.monotonic() < deadline:
        improved = False
        for candidate in candidates(best):
            if time.monotonic() > deadline:
                break
            try:
                found = microseconds(candidate)
            except (triton.runtime.errors.OutOfResources, RuntimeError) as error:
                # Too large for the processor, or wrong: a reason to leave out this candidate, not to lose the sweep.
                print(f"  {site}: left out {changes(best, candidate)}: {str(error)[:100]}", flush=True)
                continue
            if found < GAIN * least:
                print(f"  {site}: {least:.1f} → {found:.1f} µs  {changes(best, candidate)}", flush=True)
                best, least, improved = candidate, found, True
                break
    return best, least, first


def changes(base: SiteConfig, config: SiteConfig) -> dict[str, object]:
    """The fields in which `config` differs from `base`, as a file holds them."""
    before, after = asdict(base), asdict(config)
    return {name: after[name] for name in after if after[name] != before[name]}


def sweep(budget: float, seed: int, keep: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Sweep every site within `budget` seconds. Hands the configuration file's content to `keep` after each site."""
    started = time.monotonic()
    sites: dict[str, dict[str, object]] = {}
    measured: dict[str, dict[str, float]] = {}
    data = {
        "device": torch.cuda.get_device_name(),
        "measured": True,
        "triton": triton.__version__,
        "machine": machine.describe(),
        "microseconds": measured,
        "default": {},
        "sites": sites,
    }
    for index, (name, spec) in enumerate(SITES.items()):
        best, least, first = sweep_site(name, seed, started + budget * (index + 1) / len(SITES))
        key = tuning.site_key(spec.in_features, spec.slices)
        sites[key] = changes(tuning.untuned(spec.in_features, len(spec.slices)), best)
        measured[key] = {"default_us": round(first, 2), "tuned_us": round(least, 2)}
        keep(data)
    return data


def keep(data: dict[str, Any], folder: Path) -> None:
    """Write the file that launches read, and the same as a record, which is carried back."""
    records.write_whole(folder / tuning.file_name(data["device"]), json.dumps(data, indent=2) + "\n")
    records.emit({"record": "configuration", **data})


def main() -> int:
    """Sweep for nine tenths of the stage's time."""
    folder = Path(configs.__file__).parent
    sweep(0.9 * float(os.environ.get(SECONDS, "600")), 0, lambda data: keep(data, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
