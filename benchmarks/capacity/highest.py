"""The highest rate within the promise, found by running the engine at rates around the one that a plan states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.capacity.cells import WORKLOAD
from capacity.check import Asked, run_cells
from capacity.kinds import MEASURED
from capacity.operating import Effort
from capacity.profile import Profile
from capacity.search import operating_point
from capacity.simulate import Scene, replay
from capacity.workload import draw

_FACTORS = (0.8, 0.9, 1.0, 1.1, 1.2, 1.35)
_CALLS = 300


def highest(profile: Profile, flags: Sequence[str], seed: int) -> dict[str, Any]:
    """Return the rate that a plan states with its interval, and where attainment falls below α on the engine; beside it
    where it does when the same calls are simulated."""
    scene = Scene(profile, WORKLOAD)
    stated = operating_point(scene, Effort()).mu[1]
    ladder = [stated * factor for factor in _FACTORS]
    asked = [Asked(scene, 0.0, rate, draw(WORKLOAD, rate, _CALLS, seed)) for rate in ladder]
    runs = run_cells(profile, asked, flags, seconds=_CALLS / ladder[0]).results
    kept = [run.attainment(WORKLOAD) for run in runs]
    simulated = [replay(scene, one.arrivals, 1).attainment(WORKLOAD) for one in asked]
    return {
        "stated": stated,
        "interval": [stated / MEASURED, stated * MEASURED],
        "ran": crossing(ladder, kept, WORKLOAD.alpha),
        "same calls simulated": crossing(ladder, simulated, WORKLOAD.alpha),
        "rates": ladder,
        "kept": kept,
        "simulated": simulated,
    }


def crossing(rates: Sequence[float], kept: Sequence[float], alpha: float) -> float:
    """Return the rate at which attainment falls below α, between two rates along a line; the last where it never does,
    the first where it is below from the beginning."""
    for place, share in enumerate(kept):
        if share < alpha:
            if place == 0:
                return rates[0]
            sure = kept[place - 1]
            return rates[place - 1] + (rates[place] - rates[place - 1]) * (sure - alpha) / (sure - share)
    return rates[-1]
