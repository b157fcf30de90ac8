"""The rate at which a promise breaks, beside the lower one that is proven: what runs of the engine find.

A rate is proven where even the lower bound of its attainment is α. The mean of as many runs crosses α at a higher one,
and a few runs of the engine at one that lies around it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import isotonic_regression

from capacity.operating import CONFIDENCE, Effort, Progress, kept, point, quiet
from capacity.results import CurvePoint, Interval, OperatingPoint
from capacity.search import KeptRuns
from capacity.simulate import Scene

_STEP = 1.05


def with_breaking_rates(
    scene: Scene, found: OperatingPoint, effort: Effort, runs: KeptRuns, progress: Progress = quiet
) -> OperatingPoint:
    """Return an operating point of `scene` that also says where its promise breaks, for each number of replicas.

    scene: with the settings that were chosen
    runs: those of the search; of one replica none is simulated again
    """
    breaks = {
        count: breaking_rate(replace(scene, replicas=count), proven, effort, runs, progress)
        for count, proven in found.points.items()
    }
    return replace(found, breaks=breaks)


def breaking_rate(
    scene: Scene, proven: CurvePoint, effort: Effort, runs: KeptRuns, progress: Progress = quiet
) -> Interval:
    """Return the requests/s at which attainment falls to α in the mean of all seeds: between the rate that is proven
    and the one at which even the upper bound falls to it. At most the highest rate: from there on queues grow."""
    capacity = proven.rate / proven.load
    each, alpha = math.ceil(effort.requests / effort.seeds), scene.workload.alpha
    tried = [proven]
    while tried[-1].rate < capacity and kept(tried[-1], tried[-1].attainment.high) >= alpha:
        rate = min(tried[-1].rate * _STEP, capacity)
        results = [runs.run(scene, rate, each, effort.first_seed + number) for number in range(effort.seeds)]
        tried.append(point(results, scene.workload, rate, capacity))
        progress(f"{rate:.2f} requests/s: {100 * tried[-1].attainment.value:.2f} % within the promise in the mean")
    rates = [one.rate for one in tried]
    value = crossing(rates, [kept(one, one.attainment.value) for one in tried], alpha)
    high = crossing(rates, [kept(one, one.attainment.high) for one in tried], alpha)
    return Interval(value, proven.rate, max(value, high), CONFIDENCE)


def crossing(rates: Sequence[float], shares: Sequence[float], alpha: float) -> float:
    """Return where shares that fall with the rate (isotonic regression) fall to α, between two rates along a line: the
    last where none is below α, the first where all are. rates: ascending"""
    falling = isotonic_regression(shares, increasing=False).x
    below = int(np.argmax(falling < alpha))
    if falling[below] >= alpha:
        return rates[-1]
    if below == 0:
        return rates[0]
    share = (falling[below - 1] - alpha) / (falling[below - 1] - falling[below])
    return rates[below - 1] + float(share) * (rates[below] - rates[below - 1])
