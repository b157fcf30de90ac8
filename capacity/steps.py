"""Steps 7 and 8: how long a step takes, as a roofline-shaped function whose coefficients are fitted to real steps.

t = shape(rows) · ‖weights read, products‖₄ + ‖head read, head products‖₄
    + context + pairs + adapters + pages + rank rows + c₀ + c₁·decode rows, more beside a load

A machine that is bound by reading the weights and one that is bound by products differ in two coefficients, so that a
few steps fix both. The shape of rows corrects what kernels do at particular row counts; without data it is 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from capacity.errors import PlanRefused
from serving.simulation.work import StepWork

Array = npt.NDArray[np.float64]

# Coefficient → seconds each, for a model of 135 M parameters on two cores: where a fit begins, and what it is drawn to.
PRIOR: Mapping[str, float] = {
    "weights": 6e-3,  # reading the layers' weights once
    "row": 4e-4,  # a row's products with them
    "head": 1e-3,  # reading the output head once
    "sample": 2e-4,  # a row's products with it, and its sampling
    "context": 5e-7,  # a KV entry that a decode reads
    "pair": 2e-8,  # a query-key pair of a prefill
    "adapter": 1e-4,  # an adapter in a step
    "page": 1e-4,  # reading a page of adapter weights
    "rank_row": 1e-6,  # a rank of an adapter's row
    "step": 1e-3,  # a step, whatever it computes
    "decode_row": 5e-5,  # a running completion's own costs
    "loading": 0.02,  # the share that a load adds to the step beside it
}
# Coefficients that are no time, so that another machine's are the same.
SHARES = ("loading",)
KNOTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 128, 256, 512, 2048)
_NORM = 4.0
# Standard deviations, in log units, of the priors: of one coefficient, and of the shape at one knot.
_PRIOR_WIDTH, _SHAPE_WIDTH = 2.0, 0.1
# A step whose residual is beyond this counts by its absolute value alone.
_SOFT = 0.05
WORST_MEDIAN = 0.08
RESIDUALS_KEPT = 256


@dataclass(frozen=True, slots=True)
class StepModel:
    """Predicts a step's seconds. coefficients: as PRIOR; shape: log factor at each of KNOTS

    residuals: log(measured / predicted) of the steps it was fitted on, ascending: the noise of a simulation
    """

    coefficients: Mapping[str, float] = field(default_factory=lambda: dict(PRIOR))
    shape: tuple[float, ...] = (0.0,) * len(KNOTS)
    residuals: tuple[float, ...] = (0.0,)

    def predict(self, works: Sequence[StepWork]) -> Array:
        """Return seconds, float64 [steps]."""
        theta = np.log([self.coefficients[name] for name in PRIOR])
        return _seconds(features_of(works), theta, np.array(self.shape))

    def seconds(self, work: StepWork) -> float:
        """Return one step's seconds; the same as `predict`, and much faster for a single step."""
        c, rows = self.coefficients, work.rows
        layers = _norm(c["weights"], c["row"] * rows) * _factor(self.shape, rows)
        head = _norm(c["head"], c["sample"] * work.samples) if work.samples else 0.0
        total = (
            layers
            + head
            + c["context"] * work.context
            + c["pair"] * work.pairs
            + c["adapter"] * work.adapters
            + c["page"] * work.pages
            + c["rank_row"] * work.rank_rows
            + c["step"]
            + c["decode_row"] * work.decode_rows
        )
        return total * (1.0 + c["loading"]) if work.loading else total

    def parts(self, work: StepWork) -> dict[str, float]:
        """Return the seconds of a step beside which nothing loads, by what they go to: their sum is `seconds`."""
        c = self.coefficients
        return {
            "layers": _norm(c["weights"], c["row"] * work.rows) * _factor(self.shape, work.rows),
            "head": _norm(c["head"], c["sample"] * work.samples) if work.samples else 0.0,
            "context": c["context"] * work.context + c["pair"] * work.pairs,
            "adapters": c["adapter"] * work.adapters + c["page"] * work.pages + c["rank_row"] * work.rank_rows,
            "step": c["step"],
            "rows": c["decode_row"] * work.decode_rows,
        }

    def scaled(self, factors: Mapping[str, float]) -> StepModel:
        """Return the model with some coefficients multiplied."""
        return replace(self, coefficients={k: v * factors.get(k, 1.0) for k, v in self.coefficients.items()})


def kept_residuals(residuals: Iterable[float]) -> tuple[float, ...]:
    """Return RESIDUALS_KEPT of the residuals at most, ascending and evenly spread over their ranks."""
    found = sorted(map(float, residuals))
    places = np.linspace(0, len(found) - 1, min(RESIDUALS_KEPT, len(found))).round().astype(int)
    return tuple(found[place] for place in places)


def check_error(median: float, unseen: str, reason: str) -> None:
    """Raise PlanRefused for a fit whose median error on what it did not see is above 8 %.

    unseen: what that is; reason: why that may be
    """
    if median > WORST_MEDIAN:
        raise PlanRefused(
            8,
            f"the fit is {100 * median:.1f} % off in the median on {unseen} it did not see, {100 * WORST_MEDIAN:.0f} % "
            f"are allowed{reason}; calibrate again",
        )


def fit_sums(
    works: Sequence[StepWork], weights: Array, ways: Array, seconds: Array, *, way: float
) -> tuple[StepModel, float]:
    """Fit a model to figures that are sums of steps: what is known of a replica that is measured from outside.

    weights: [figures, steps]; ways: [figures], how often a figure has the seconds from a client to the engine, which
    are fitted beside the steps and begin at `way`; seconds: [figures], measured. Residuals and priors are those of
    `solve`; the shape of rows stays 1. Returns the model and the seconds of a way.
    """
    features, shape, count = features_of(works), np.zeros(len(KNOTS)), len(PRIOR)
    start, observed = np.log(list(PRIOR.values())), np.log(seconds)
    # As in `solve`: one speed for the whole prior first.
    speed = float(np.median(observed - np.log(weights @ _seconds(features, start, shape))))
    start = np.append(start + speed * _TIMES, np.log(way))

    def residuals(theta: Array) -> Array:
        said = weights @ _seconds(features, theta[:count], shape) + ways * np.exp(theta[count])
        return np.concatenate([np.log(said) - observed, (theta - start) / _PRIOR_WIDTH * _SOFT])

    solved = least_squares(residuals, start, loss="soft_l1", f_scale=_SOFT, max_nfev=200)
    return StepModel(_named(solved.x[:count])), float(np.exp(solved.x[count]))


def fit_linear(works: Sequence[StepWork], seconds: Sequence[float]) -> Mapping[str, float]:
    """Fit steps that are linear in their work, with the same effort: what the roofline's shape is compared with."""
    matrix, measured = _linear_features(works), np.asarray(seconds, np.float64)
    solved = least_squares(
        lambda theta: np.log(matrix @ np.exp(theta)) - np.log(measured),
        np.log([PRIOR[name] for name in _LINEAR]),
        loss="soft_l1",
        f_scale=_SOFT,
    )
    return dict(zip(_LINEAR, map(float, np.exp(solved.x)), strict=True))


def linear_model(coefficients: Mapping[str, float]) -> StepModel:
    """Return linear steps as a model: without reading that products hide."""
    none = dict.fromkeys(PRIOR, 1e-15)
    return StepModel(none | dict(coefficients) | {"weights": 1e-15, "head": 1e-15})


@dataclass(frozen=True, slots=True)
class Probes:
    """Two figures of a machine: bytes per second of a read, operations per second of a product that caches hold."""

    read: float
    gemm: float


# Which coefficients follow the bandwidth; the others follow the products.
_READS = ("weights", "head", "context", "page", "adapter")


def transfer(model: StepModel, measured: Probes, other: Probes) -> StepModel:
    """Return the model of another machine, known by two probes alone. Raises PlanRefused for impossible probes."""
    if min(measured.read, measured.gemm, other.read, other.gemm) <= 0:
        raise PlanRefused(8, "a probe must be above 0")
    read, product = measured.read / other.read, measured.gemm / other.gemm
    factors = {name: read if name in _READS else product for name in PRIOR if name not in SHARES}
    return model.scaled(factors)


# -- the function ---------------------------------------------------------------------------------------------------

_LOG_KNOTS = np.log(KNOTS)
_COLUMNS = ("rows", "samples", "context", "pairs", "adapters", "pages", "rank_rows", "decode_rows", "loading")
_TIMES = np.array([name not in SHARES for name in PRIOR], np.float64)
_LINEAR = ("row", "sample", "context", "pair", "adapter", "page", "rank_row", "step", "decode_row")


@lru_cache(4096)
def _factor(shape: tuple[float, ...], rows: int) -> float:
    return float(np.exp(np.interp(np.log(max(1, rows)), _LOG_KNOTS, shape)))


def _norm(one: float, other: float) -> float:
    """Return ‖one, other‖₄: the longer of two times that mostly overlap."""
    return float((one**_NORM + other**_NORM) ** (1 / _NORM))


def features_of(works: Sequence[StepWork]) -> Array:
    """Return what a step's time depends on, float64 [steps, features]."""
    return np.array([[float(getattr(work, name)) for name in _COLUMNS] for work in works], np.float64)


def _linear_features(works: Sequence[StepWork]) -> Array:
    rows, samples, context, pairs, adapters, pages, rank_rows, decode_rows, _ = features_of(works).T
    ones = np.ones_like(rows)
    return np.stack([rows, samples, context, pairs, adapters, pages, rank_rows, ones, decode_rows], axis=1)


def _seconds(features: Array, theta: Array, shape: Array) -> Array:
    rows, samples, context, pairs, adapters, pages, rank_rows, decode_rows, loading = features.T
    weights, row, head, sample, c_context, c_pair, c_adapter, c_page, c_rank, step, decode, load = np.exp(theta)
    factor = np.exp(np.interp(np.log(np.maximum(rows, 1.0)), _LOG_KNOTS, shape))
    layers = (weights**_NORM + (row * rows) ** _NORM) ** (1 / _NORM) * factor
    heads = np.where(samples > 0, (head**_NORM + (sample * samples) ** _NORM) ** (1 / _NORM), 0.0)
    total = layers + heads + c_context * context + c_pair * pairs + c_adapter * adapters + c_page * pages
    total = total + c_rank * rank_rows + step + decode * decode_rows
    return np.asarray(total * (1.0 + load * loading), np.float64)


def solve(features: Array, measured: Array) -> tuple[Array, Array]:
    """Return the logs of coefficients and of the shape that explain `measured`, seconds [steps], best."""
    prior = StepModel()
    start = np.log([prior.coefficients[name] for name in PRIOR])
    count, observed = len(start), np.log(measured)
    # One speed for the whole prior first: the machine may be ten times as fast.
    speed = float(np.median(observed - np.log(_seconds(features, start, np.array(prior.shape)))))
    start = start + speed * _TIMES
    weight = _SOFT  # residuals of the prior are in units of its width, those of steps in units of _SOFT

    def residuals(theta: Array) -> Array:
        off = np.log(_seconds(features, theta[:count], theta[count:])) - observed
        drawn = (theta[:count] - start) / _PRIOR_WIDTH * weight
        bent = (theta[count:] - np.array(prior.shape)) / _SHAPE_WIDTH * weight
        return np.concatenate([off, drawn, bent])

    solved = least_squares(residuals, np.concatenate([start, prior.shape]), loss="soft_l1", f_scale=_SOFT, max_nfev=200)
    return solved.x[:count], solved.x[count:]


def predict_with(solution: tuple[Array, Array], features: Array) -> Array:
    """Return seconds, float64 [steps], by what `solve` returned."""
    return _seconds(features, *solution)


def model_of(solution: tuple[Array, Array]) -> StepModel:
    """Return what `solve` returned as a model without residuals."""
    return StepModel(_named(solution[0]), tuple(map(float, solution[1])))


def _named(theta: Array) -> dict[str, float]:
    return dict(zip(PRIOR, map(float, np.exp(theta)), strict=True))
