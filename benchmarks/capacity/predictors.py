"""The predictors that a plan's is compared with, fitted on the same steps: the closed formula, steps that are linear in
their work, and interpolation between the steps of the calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from capacity.calibrate import Measured
from capacity.profile import Profile
from capacity.steps import PRIOR, StepModel, fit_linear, linear_model
from capacity.workload import Arrival
from serving.simulation.work import StepWork

_NEAREST = 4


def linear(measured: Measured, profile: Profile) -> StepModel:
    """Return linear steps fitted to the calibration's, with its noise."""
    found = linear_model(fit_linear(measured.works, measured.seconds))
    return StepModel(found.coefficients, found.shape, profile.residuals)


@dataclass(frozen=True, slots=True)
class Interpolated(StepModel):
    """A step takes what the calibration's most similar steps took."""

    points: np.ndarray = field(default_factory=lambda: np.zeros((1, 1)))
    logs: np.ndarray = field(default_factory=lambda: np.zeros(1))

    @classmethod
    def of(cls, measured: Measured, profile: Profile) -> Interpolated:
        points = np.array([_place(work) for work in measured.works])
        return cls(dict(PRIOR), (0.0,), profile.residuals, points, np.log(measured.seconds))

    def seconds(self, work: StepWork) -> float:
        distances = ((self.points - np.array(_place(work))) ** 2).sum(axis=1)
        nearest = np.argpartition(distances, min(_NEAREST, len(distances) - 1))[:_NEAREST]
        weights = 1.0 / (distances[nearest] + 1e-6)
        return float(np.exp((weights * self.logs[nearest]).sum() / weights.sum()))


def _place(work: StepWork) -> list[float]:
    return [
        math.log1p(value)
        for value in (
            work.rows,
            work.decode_rows,
            work.context / 64,
            work.pairs / 256,
            work.adapters,
            work.rank_rows / 16,
        )
    ]


def closed(profile: Profile, arrivals: Sequence[Arrival], rate: float) -> Mapping[str, float]:
    """Return the figures of a steady batch: b = λ·E[O]·t(b), in which a prompt waits for nobody."""
    steps, prompt = profile.steps, float(np.mean([one.prompt - one.cached for one in arrivals]))
    output, context = float(np.mean([one.output for one in arrivals])), float(np.mean([one.prompt for one in arrivals]))
    adapted = float(np.mean([one.adapter is not None for one in arrivals]))
    batch, seconds, seats = 1.0, 0.0, profile.replica.max_num_seqs
    for _ in range(200):
        rows = max(1, round(batch))
        chunk = prompt / output * batch  # each decode step brings its share of new prompts
        adapters = round(adapted * rows)
        work = StepWork(
            rows=rows + round(chunk),
            decode_rows=rows,
            samples=rows,
            context=round(rows * context),
            pairs=chunk * context / 2,
            adapters=adapters,
            pages=adapters,
            rank_rows=16 * adapters,
        )
        seconds = steps.seconds(work)
        batch = 0.5 * batch + 0.5 * min(seats, rate * output * seconds)
    full = StepWork(round(prompt), 0, 1, 0, prompt * context / 2, 1, 1, round(16 * prompt))
    ttft = steps.seconds(full) + seconds / 2
    return {
        "output_rate": min(rate * output, seats / seconds),
        "ttft_mean": ttft,
        "ttft_p95": ttft,
        "itl_p50": seconds,
        "itl_p99": seconds,
    }
