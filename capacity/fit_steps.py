"""Step 8, calibration: a step model fitted to measured steps, and judged by steps that the fit did not see.

A machine whose neighbours come and go is not always as fast: for seconds or minutes all its steps are half as long
again. No model of steps can know that, and a fit that takes it for the steps' own time is wrong. So the machine has a
speed at each moment, which is what the steps around that moment say in the median, and the model is of steps at its
typical speed. The slow seconds stay in the residuals, from which simulations draw, and in `drift`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from capacity.errors import PlanRefused
from capacity.steps import (
    Array,
    StepModel,
    check_error,
    features_of,
    kept_residuals,
    model_of,
    predict_with,
    solve,
)
from serving.simulation.work import StepWork

_LEAST_STEPS = 60
_FOLDS = 4
# Steps around a moment that say how fast the machine is then. Fits and speeds follow from each other, so many times.
_AROUND, _ROUNDS = 8, 3

Solution = tuple[Array, Array]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model, and how far it is off on steps that it did not see.

    typical: the measured seconds of the steps it was fitted on, as they were at the machine's typical speed
    median, p90: of |predicted − typical| / typical, of steps none of whose runs the fit saw
    drift: how far the pass farthest from the model is from it, in the median: a machine that slows down for a minute
    """

    model: StepModel
    typical: Array
    median: float
    p90: float
    drift: float


def fit(works: Sequence[StepWork], seconds: Sequence[float], passes: Sequence[int]) -> Fit:
    """Fit a model to steps, in the order in which they ran, and judge it.

    A quarter of the steps at a time is left out with all runs; the others say what the machine's speed was then.

    Raises PlanRefused for too few steps, impossible times, or a median error above 8 % on the steps left out.
    """
    measured = np.asarray(seconds, np.float64)
    if len(works) < _LEAST_STEPS:
        raise PlanRefused(8, f"{len(works)} steps were measured, a fit needs {_LEAST_STEPS}: give it more time")
    if not np.all(np.isfinite(measured)) or np.any(measured <= 0):
        raise PlanRefused(8, "the times of steps must be finite and above 0 s")
    runs, features = _runs(works), features_of(works)
    off = _off(features, measured, runs)
    median, p90 = float(np.median(off)), float(np.percentile(off, 90))
    noise = _noise(measured, runs, passes)
    reason = f", and the same step differs by {100 * noise:.1f} % between passes: the machine was too busy"
    check_error(median, "steps", reason)
    solution, typical = _at_typical_speed(features, measured, np.ones(len(works), np.bool_))
    residuals, numbers = np.log(measured / predict_with(solution, features)), np.asarray(passes)
    drift = max(abs(float(np.expm1(np.median(residuals[numbers == number])))) for number in set(passes))
    return Fit(replace(model_of(solution), residuals=kept_residuals(residuals)), typical, median, p90, drift)


def _at_typical_speed(features: Array, seconds: Array, seen: npt.NDArray[np.bool_]) -> tuple[Solution, Array]:
    """Fit the `seen` steps; return that, and the seconds of all steps as they were at the machine's typical speed."""
    around, typical = _around(seconds, seen), seconds
    for _ in range(_ROUNDS):
        solution = solve(features[seen], typical[seen])
        slower = np.median(np.log(seconds / predict_with(solution, features))[around], axis=1)
        typical = seconds / np.exp(slower - np.median(slower))
    return solve(features[seen], typical[seen]), typical


def _around(seconds: Array, seen: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Return for each step the places of the seen ones that ran nearest to it, itself left out: [steps, _AROUND]."""
    middles, places = np.cumsum(seconds) - seconds / 2, np.flatnonzero(seen)
    apart = np.abs(middles[:, None] - middles[places])
    apart[places, np.arange(len(places))] = np.inf
    return places[np.argpartition(apart, _AROUND, axis=1)[:, :_AROUND]]


def _runs(works: Sequence[StepWork]) -> list[list[int]]:
    """Return the places of each step's runs, by the order in which steps first ran."""
    places: dict[StepWork, list[int]] = {}
    for place, work in enumerate(works):
        places.setdefault(work, []).append(place)
    return list(places.values())


def _off(features: Array, seconds: Array, runs: list[list[int]]) -> Array:
    """Return the relative error of each step, predicted by a fit to runs of others: a step's time is the median of its
    runs."""
    fold = np.empty(len(seconds), np.int64)
    for number, places in enumerate(runs):
        fold[places] = number % _FOLDS
    off = []
    for number in range(_FOLDS):
        solution, typical = _at_typical_speed(features, seconds, fold != number)
        mine = [places for places in runs if fold[places[0]] == number]
        said = predict_with(solution, features[[places[0] for places in mine]])
        off.append(np.abs(said / np.array([np.median(typical[places]) for places in mine]) - 1.0))
    return np.concatenate(off)


def _noise(seconds: Array, runs: list[list[int]], passes: Sequence[int]) -> float:
    """Return by how much two runs of one step in different passes differ in the median; 0 where none ran twice."""
    pairs = [pair for places in runs for pair in itertools.combinations(places, 2)]
    off = [abs(seconds[one] / seconds[other] - 1.0) for one, other in pairs if passes[one] != passes[other]]
    return float(np.median(off)) if off else 0.0
