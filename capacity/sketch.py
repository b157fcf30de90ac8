"""A sketch of step 10: about where the promise breaks, for a choice among accelerators.

A bound that a few runs prove is too careful, and whether they keep the promise at one rate is luck. So rates are tried
from the highest downwards, misses are taken to grow with the rate (isotonic regression over all that was tried), and
the rate is returned at which as many calls miss as at rates that full effort proves. Runs are as long as those of a
proof: in shorter ones queues have no time to grow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import isotonic_regression

from capacity.operating import MOST_BACKLOG, Effort, kept, point, unkept, why
from capacity.results import CurvePoint, OperatingPoint, Source
from capacity.search import LEAST_LOAD, KeptRuns
from capacity.simulate import Scene

# Each rate is this share of the one before; rates are tried until so many hold.
_STEP, _ENOUGH = 0.85, 2
_SEEDS = 2
# Share of the misses that the promise allows: the highest rates that 4,000 calls prove have 40 to 60 %.
_MISSES = 0.55
# A rate whose first run has so many times the allowed misses, or so few, is far from the cliff.
_ABOVE, _BELOW = 3.0, 0.1


def sketched(scene: Scene, effort: Effort) -> OperatingPoint:
    """Return about what `search.operating_point` would for one replica, for a fraction of its effort; `points` has the
    next lower rate that was simulated.

    Raises PlanRefused where not even a twentieth of the highest rate keeps the promise.
    """
    runs = KeptRuns()
    tried = _tried(scene, effort, runs, runs.highest(scene, effort))
    rate, chosen, fails = _crossing(scene, tried)
    source = Source.TRANSFERRED if scene.profile.transferred else Source.SIMULATED
    return OperatingPoint(mu={1: rate}, points={1: chosen}, next_fails={1: fails}, source=source)


def _tried(scene: Scene, effort: Effort, runs: KeptRuns, capacity: float) -> list[CurvePoint]:
    """Return the points that were simulated, ascending, from the highest rate downwards until some hold."""
    calls, allowed = math.ceil(effort.requests / effort.seeds), 1 - scene.workload.alpha
    found: list[CurvePoint] = []
    rate, holding = capacity, 0
    while holding < _ENOUGH and rate > LEAST_LOAD * capacity:
        results = [runs.run(scene, rate, calls, effort.first_seed)]
        first = 1 - results[0].attainment(scene.workload)
        clear = first > _ABOVE * allowed or (first <= _BELOW * allowed and results[0].backlog <= MOST_BACKLOG)
        if not clear:
            results += [runs.run(scene, rate, calls, effort.first_seed + more) for more in range(1, _SEEDS)]
        found.insert(0, point(results, scene.workload, rate, capacity))
        missed = _missed(found[0])
        holding = _ENOUGH if missed <= _BELOW * allowed else holding + 1 if missed <= _MISSES * allowed else 0
        rate *= _STEP
    return found


def _crossing(scene: Scene, tried: Sequence[CurvePoint]) -> tuple[float, CurvePoint, str]:
    """Return the rate at which misses are as many as a proven rate has, the simulated one below, and why more fails."""
    allowed = _MISSES * (1 - scene.workload.alpha)
    misses = isotonic_regression([_missed(one) for one in tried], weights=[one.requests for one in tried]).x
    below = int(np.searchsorted(misses, allowed, side="right")) - 1
    if below < 0:
        raise unkept(tried[0], scene.workload)
    chosen = tried[below]
    if below + 1 == len(tried):
        return chosen.rate, chosen, f"More than {chosen.rate:.2f} requests/s were not tried."
    above = tried[below + 1]
    share = (allowed - misses[below]) / (misses[below + 1] - misses[below])
    return chosen.rate + float(share) * (above.rate - chosen.rate), chosen, why(above, scene.workload)


def _missed(tried: CurvePoint) -> float:
    """Return the share of calls that broke their promise; all of them where a queue grew."""
    return 1 - kept(tried, tried.attainment.value)
