"""The highest rate within the promise, found by running the engine at rates around the one at which it should break."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.capacity.cells import WORKLOAD
from capacity.breaking import breaking_rate, crossing
from capacity.check import Asked, run_cells
from capacity.kinds import factor_of
from capacity.operating import Effort
from capacity.profile import Profile
from capacity.search import KeptRuns, operating_point
from capacity.simulate import Scene, replay
from capacity.workload import draw

# From the stated rate the engine is run at the next higher or lower ones, until two neighbours differ in the promise.
_STEP, _MOST_RATES = 1.1, 8
_CALLS, _TRACES = 300, 2


def highest(profile: Profile, flags: Sequence[str], seed: int) -> dict[str, Any]:
    """Return the rate that is proven, the one at which the promise should break with its interval, and where it breaks
    on the engine; beside it where it does when the same calls are simulated."""
    scene, effort, runs = Scene(profile, WORKLOAD), Effort(), KeptRuns()
    proven = operating_point(scene, effort, runs=runs).points[1]
    breaks = breaking_rate(scene, proven, effort, runs)
    factor = factor_of(profile)
    ran: dict[float, tuple[float, float]] = {}  # rate → attainment on the engine, and of the same calls simulated
    rate = breaks.value
    while len(ran) < _MOST_RATES and len({kept >= WORKLOAD.alpha for kept, _ in ran.values()}) < 2:
        ran[rate] = _kept(scene, rate, flags, seed)
        rate = max(ran) * _STEP if ran[rate][0] >= WORKLOAD.alpha else min(ran) / _STEP
    ladder = sorted(ran)
    kept, simulated = ([ran[one][which] for one in ladder] for which in (0, 1))
    return {
        "proven": proven.rate,
        "stated": breaks.value,
        "interval": [breaks.low / factor, breaks.high * factor],
        "ran": crossing(ladder, kept, WORKLOAD.alpha),
        "same calls simulated": crossing(ladder, simulated, WORKLOAD.alpha),
        "rates": ladder,
        "kept": kept,
        "simulated": simulated,
    }


def _kept(scene: Scene, rate: float, flags: Sequence[str], seed: int) -> tuple[float, float]:
    """Return the attainment of some traces, on the engine and simulated."""
    asked = [Asked(scene, 0.0, rate, draw(WORKLOAD, rate, _CALLS, seed + trace)) for trace in range(_TRACES)]
    runs = run_cells(scene.profile, asked, flags, seconds=_CALLS / rate).results
    simulated = [replay(scene, one.arrivals, 1) for one in asked]
    on_engine, beside = ([one.attainment(WORKLOAD) for one in each] for each in (runs, simulated))
    return float(np.mean(on_engine)), float(np.mean(beside))
