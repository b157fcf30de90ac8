"""Predictions beside runs: one recorded trace, simulated on a profile and run on a real engine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from capacity.results import Interval
from capacity.runs import CallResult, RunResult
from capacity.simulate import Scene, replay
from capacity.steps import SHARES
from capacity.workload import Arrival, Workload

_PREFIX_TOKENS = 180
_FIRST_TOKEN = 20
_CLASS_NUMBERS = {"interactive": 0, "standard": 1, "batch": 2}
# Seeds of the noise that a prediction's interval spans.
SEEDS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures that are compared. output_rate: tokens per second; the others: seconds"""

    output_rate: float
    ttft_mean: float
    ttft_p95: float
    itl_p50: float
    itl_p99: float
    hit: float = 1.0

    def as_dict(self) -> dict[str, float]:
        """Return the figures by name."""
        return asdict(self)


def figures(result: RunResult) -> Figures:
    """Return the figures of a run."""
    ttft, itl = result.ttft(), result.itl()
    return Figures(
        result.output_rate,
        float(ttft.mean()),
        float(np.percentile(ttft, 95)),
        float(np.percentile(itl, 50)),
        float(np.percentile(itl, 99)),
        result.hit,
    )


@dataclass(frozen=True, slots=True)
class Prediction:
    """The figures of a trace before it is run, and intervals that should hold the truth."""

    figures: Figures
    intervals: Mapping[str, Interval]

    def without(self, unseen: frozenset[str]) -> Prediction:
        """Return it without the figures that are not measured."""
        return replace(self, intervals={name: one for name, one in self.intervals.items() if name not in unseen})


def predict(scene: Scene, arrivals: Sequence[Arrival], beside: Sequence[float] = ()) -> Prediction:
    """Simulate a trace. The interval spans the seeds of the noise and steps that are off by as much as the fit was.

    beside: how many times as long as usual reference steps took before and after the run, where that was measured: the
        interval reaches so far
    """
    error = scene.profile.error
    runs = [figures(replay(scene, arrivals, seed)).as_dict() for seed in SEEDS]
    middle = Figures(**{name: float(np.mean([run[name] for run in runs])) for name in runs[0]})
    for factor in (min([1.0, *beside]) / (1 + error), max([1.0, *beside]) * (1 + error)):
        scaled = {name: factor for name in scene.steps.coefficients if name not in SHARES}
        other = replace(scene, model=scene.steps.scaled(scaled))
        runs += [figures(replay(other, arrivals, seed)).as_dict() for seed in SEEDS]
    intervals = {}
    for name, value in middle.as_dict().items():
        low, high = min(run[name] for run in runs), max(run[name] for run in runs)
        most = 1.0 if name == "hit" else math.inf
        intervals[name] = Interval(value, low * (1 - error), min(most, high * (1 + error)))
    return Prediction(middle, intervals)


def line_of(workload: Workload, arrivals: Sequence[Arrival], name: str, warm: int) -> dict[str, Any]:
    """Return a trace as the engine's process reads it. name: no other trace's; warm: how many adapters are resident"""
    return {
        "warm": [digest_of(workload, number) for number in range(min(warm, workload.adapters))],
        "arrivals": [
            {
                "at": one.at,
                "latency_class": _CLASS_NUMBERS[one.latency_class],
                "adapter": None if one.adapter is None else digest_of(workload, one.adapter),
                "scope": f"{name}/{one.cached}",
                "prompt": prompt_tokens(one, number),
                "output": one.output,
            }
            for number, one in enumerate(arrivals)
        ],
    }


def digest_of(workload: Workload, adapter: int) -> str:
    """Return the name of an adapter with random weights that has this one's rank."""
    return f"r{workload.rank_of(adapter)}-{adapter:05d}"


def prompt_tokens(arrival: Arrival, number: int) -> list[int]:
    """Return tokens: the first `cached` are those of every such call, the others no other number's (below 180³)."""
    begins = [_FIRST_TOKEN + place % 97 for place in range(arrival.cached)]
    own = [_FIRST_TOKEN + number // _PREFIX_TOKENS**power % _PREFIX_TOKENS for power in range(3)]
    rest = arrival.prompt - arrival.cached
    return begins + (own + [_FIRST_TOKEN + place % 89 for place in range(max(0, rest - 3))])[:rest]


def measured(calls: Sequence[Mapping[str, Any]], arrivals: Sequence[Arrival], warm_share: float) -> RunResult:
    """Return what became of a trace on a real engine, with the same calls left out as in a simulation."""
    found = []
    for call, arrival in zip(calls, arrivals, strict=True):
        times = [float(time) for time in call["tokens"]]
        gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
        ttft = times[0] - arrival.at if times else math.inf
        found.append(CallResult(arrival, ttft, gaps, bool(call["cold"]), times[-1] if times else math.inf))
    kept = found[int(warm_share * len(found)) :]
    began = kept[0].arrival.at
    ended = max((call.ended for call in kept if call.ended < math.inf), default=began) - began
    return RunResult(tuple(kept), max(1e-9, kept[-1].arrival.at - began), ended, math.nan, 0, 0)
