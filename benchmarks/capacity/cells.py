"""Cells of the comparison: each is run twice on the engine, and predicted by every predictor from the same steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from benchmarks.capacity.predictors import Interpolated, closed, linear
from capacity.calibrate import Measured
from capacity.cells import SEEDS, figures, predict
from capacity.check import Asked, cells_of, run_cells
from capacity.operating import Effort, highest_rate
from capacity.profile import Profile
from capacity.runs import RunResult
from capacity.simulate import Scene, replay
from capacity.steps import StepModel
from capacity.workload import Promise, Sample, Workload, draw

WORKLOAD = Workload(
    rate=1.0,
    promises={"interactive": Promise(ttft=3.0, tpot=0.25)},
    samples=(
        Sample(prompt=64, output=24, weight=4.0),
        Sample(prompt=160, cached=64, output=48, weight=3.0),
        Sample(prompt=320, output=16, weight=1.0),
    ),
    adapters=64,
    alpha=0.9,
)
LOADS = (0.3, 0.5, 0.7, 0.85, 0.6, 0.95)
# More calls than the engine serves: its throughput is then its own, not the arrivals'.
FULL = 5.0
_LEAST_CALLS = 60


def open_loop(profile: Profile, *, count: int, seconds: float, seed: int) -> list[Asked]:
    """Return cells at shares of the highest rate, with no adapters, as many as fit, four times as many."""
    return cells_of(profile, WORKLOAD, count=count, seconds=seconds, seed=seed, loads=LOADS)


def saturated(profile: Profile, *, most: int, seconds: float, seed: int) -> list[Asked]:
    """Return cells at more than the highest rate: without adapters, with 64, and with `most` of which 64 are resident.

    The same calls each time, but for their adapters.
    """
    asked = []
    served = highest_rate(Scene(profile, WORKLOAD), Effort(2, 400, seed))
    for adapters in (0, WORKLOAD.adapters, most):
        workload = msgspec.structs.replace(WORKLOAD, adapters=adapters)
        calls = max(_LEAST_CALLS, round(served * seconds))
        asked.append(Asked(Scene(profile, workload), FULL, FULL * served, draw(workload, FULL * served, calls, seed)))
    return asked


def run_twice(
    profile: Profile, asked: Sequence[Asked], flags: Sequence[str], *, seconds: float
) -> list[tuple[RunResult, RunResult]]:
    """Run all cells, then all again, in one process."""
    runs = run_cells(profile, [*asked, *asked], flags, seconds=seconds).results
    return list(zip(runs[: len(asked)], runs[len(asked) :], strict=True))


def compare(asked: Asked, runs: Sequence[RunResult], measured: Measured, profile: Profile) -> dict[str, Any]:
    """Return what every predictor says of a cell, and what the engine did: each run, and the mean of both."""
    prediction = predict(asked.scene, asked.arrivals)
    models: dict[str, StepModel] = {
        "linear steps": linear(measured, profile),
        "interpolation": Interpolated.of(measured, profile),
    }
    said = {name: _mean([_replayed(asked, model, seed) for seed in SEEDS]) for name, model in models.items()}
    ran = [figures(run).as_dict() for run in runs]
    return {
        "load": asked.load,
        "rate": asked.rate,
        "calls": len(asked.arrivals),
        "adapters": asked.scene.workload.adapters,
        "runs": ran,
        "run": _mean(ran),
        "plan": prediction.figures.as_dict(),
        "intervals": {name: [one.low, one.high] for name, one in prediction.intervals.items()},
        "covered": [{name: one[name] in held for name, held in prediction.intervals.items()} for one in ran],
        "closed formula": dict(closed(profile, asked.arrivals, asked.rate)),
        **said,
    }


def share(cells: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the share of throughput that is left where most adapters are not resident: predicted, run, of each run.

    cells: of `saturated`
    """
    _, resident, many = cells
    each = [many["runs"][n]["output_rate"] / resident["runs"][n]["output_rate"] for n in range(2)]
    return {
        "plan": many["plan"]["output_rate"] / resident["plan"]["output_rate"],
        "run": many["run"]["output_rate"] / resident["run"]["output_rate"],
        "first": each[0],
        "second": each[1],
    }


def _replayed(asked: Asked, model: StepModel, seed: int) -> dict[str, float]:
    return figures(replay(replace(asked.scene, model=model), asked.arrivals, seed)).as_dict()


def _mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
