"""A model of a step's duration: linear in what the step computes, fitted to the measured steps.

Least squares on relative errors with exponential forgetting, regularised towards the defaults times one common speed.
One absurd measurement (a page fault storm, a suspended machine) moves the fit by a bounded amount, and every
coefficient stays within a bounded range around the common speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from serving.steps import StepShape

FEATURES = (
    "step",
    "decode_row",
    "prefill_row",
    "context_token",
    "prefill_pair",
    "adapter",
    "rank_row",
    "draft_row",
    "late_draft_row",
)

# Seconds each on a two-core CPU with a model of 135 M parameters. Only the proportions matter for long: the common
# speed follows the first few measured steps.
DEFAULTS = (8e-3, 2e-3, 1e-3, 1e-6, 5e-8, 2e-4, 4e-6, 2e-4, 9e-4)
# Rows of a step up to which reading the weights takes longer than their products; a runner that measures it says so.
KNEE = 16

_FORGET = 0.98  # a window of about fifty steps
_PULL = 0.05  # weight of the defaults, in steps
_TRUSTED = 4  # the first measurements are taken whole, later ones within _CLIP times the prediction
_CLIP = 4.0
_RANGE = 20.0
_REFIT_STEPS = 8
_HEAVY = 1e9  # a step's weight at which all weights are divided by it


class CostModel:
    """Predicts a step's seconds from its `StepShape`; learns from `observe`.

    knee: rows of a step up to which one more row of a draft is nearly free
    """

    def __init__(self, defaults: tuple[float, ...] = DEFAULTS, *, knee: int = KNEE) -> None:
        size = len(FEATURES)
        if len(defaults) != size or not all(math.isfinite(c) and c > 0 for c in defaults):
            raise ValueError(f"{size} positive coefficients, one for each of {', '.join(FEATURES)}")
        self.defaults = self.coefficients = defaults
        self.knee = knee
        self.observed = 0
        self.relative_error = 0.0  # running mean of |predicted - measured| / measured
        self._log_speed = 0.0
        # Old steps are forgotten by giving each new one more weight, which touches only what the step has.
        self._weight = 1.0
        self._products = [[0.0] * size for _ in range(size)]  # symmetric: the lower triangle
        self._answers = [0.0] * size

    def predict(self, shape: StepShape) -> float:
        """Return the predicted duration of the step, in seconds."""
        step, decode, prefill, context, pair, adapter, rank, draft, late = self.coefficients
        return (
            step
            + decode * shape.decode_rows
            + prefill * shape.prefill_rows
            + context * shape.context_tokens
            + pair * shape.prefill_pairs
            + adapter * len(shape.adapters)
            + rank * shape.rank_rows
            + draft * shape.draft_rows
            + late * shape.late_draft_rows
        )

    @property
    def draft_row_seconds(self) -> tuple[float, float]:
        """Return the seconds that a row of a draft adds to a step: below the knee, and beyond."""
        near, late = self.coefficients[-2:]
        return near, max(near, late)

    def prefill_rows_within(self, shape: StepShape, seconds: float, start: int, digest: str | None, rank: int) -> int:
        """Return how many prompt tokens from position `start` on fit into a step of `seconds` that already computes
        `shape`."""
        _, _, row, _, pair, adapter, rank_row, *_ = self.coefficients
        left = seconds - self.predict(shape)
        if digest is not None and digest not in shape.adapters:
            left -= adapter
        if left <= 0:
            return 0
        linear = row + rank_row * rank + pair * start
        # linear·n + pair·n²/2 = left
        return int(2 * left / (linear + math.sqrt(linear * linear + 2 * pair * left)))

    def prefill_seconds(self, tokens: int, rank: int, chunk: int) -> float:
        """Return the seconds that a prompt takes alone, in steps of `chunk` tokens."""
        step, _, row, _, pair, _, rank_row, *_ = self.coefficients
        return step * math.ceil(tokens / chunk) + tokens * (row + rank_row * rank) + pair * tokens * tokens / 2

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learn from a step that took `seconds` (> 0)."""
        predicted = self.predict(shape)
        self.relative_error += 0.05 * (min(abs(predicted / seconds - 1.0), 10.0) - self.relative_error)
        if self.observed >= _TRUSTED:
            seconds = min(max(seconds, predicted / _CLIP), predicted * _CLIP)
        self.observed += 1
        # Relative to the defaults' prediction, so that short and long steps have the same weight.
        parts = [d * f for d, f in zip(self.defaults, _features(shape), strict=True)]
        expected = sum(parts)
        ratio = seconds / expected
        self._log_speed += (math.log(ratio) - self._log_speed) * max(0.1, 1 / self.observed)
        self._weight /= _FORGET
        shares: list[tuple[int, float]] = []
        for index, part in enumerate(parts):
            if part:
                shares.append((index, part / expected))
                weighted, row = self._weight * shares[-1][1], self._products[index]
                self._answers[index] += weighted * ratio
                for other, share in shares:
                    row[other] += weighted * share
        if self.observed <= _REFIT_STEPS or self.observed % _REFIT_STEPS == 0:
            self._refit()

    def _refit(self) -> None:
        speed, scale = math.exp(self._log_speed), 1 / self._weight
        products = self._products
        seen = [index for index, row in enumerate(products) if row[index]]
        lower = [[products[row][column] * scale for column in seen[: place + 1]] for place, row in enumerate(seen)]
        for row in lower:
            row[-1] += _PULL
        found = _solve(lower, [self._answers[index] * scale + _PULL * speed for index in seen])
        factors = [speed] * len(FEATURES)  # of what no step had, too
        for index, factor in zip(seen, found, strict=True):
            factors[index] = min(max(factor, speed / _RANGE), speed * _RANGE)
        self.coefficients = tuple(d * f for d, f in zip(self.defaults, factors, strict=True))
        if self._weight > _HEAVY:
            self._products = [[product * scale for product in row] for row in products]
            self._answers = [answer * scale for answer in self._answers]
            self._weight = 1.0

    def state(self) -> dict[str, object]:
        """Return what `restore` needs, as JSON types."""
        return {"features": list(FEATURES), "coefficients": list(self.coefficients)}

    @classmethod
    def restore(cls, state: Mapping[str, object]) -> CostModel:
        """Make a model that starts from saved coefficients. Raises ValueError if they belong to another model or are
        invalid."""
        coefficients = state.get("coefficients")
        if state.get("features") != list(FEATURES) or not isinstance(coefficients, list):
            raise ValueError("not the coefficients of this cost model")
        if not all(isinstance(c, int | float) for c in coefficients):
            raise ValueError("coefficients are numbers")
        return cls(tuple(map(float, coefficients)))


def _features(shape: StepShape) -> tuple[float, ...]:
    return (
        1.0,
        shape.decode_rows,
        shape.prefill_rows,
        shape.context_tokens,
        shape.prefill_pairs,
        len(shape.adapters),
        shape.rank_rows,
        shape.draft_rows,
        shape.late_draft_rows,
    )


def _solve(lower: list[list[float]], answers: list[float]) -> list[float]:
    """Solve a symmetric positive definite system, given by its lower triangle; changes its arguments."""
    size = len(answers)
    for column in range(size):
        pivot = lower[column][column]
        for row in range(column + 1, size):
            target = lower[row]
            factor = target[column] / pivot
            for index in range(column + 1, row + 1):
                target[index] -= factor * lower[index][column]
            answers[row] -= factor * answers[column]
    for row in reversed(range(size)):
        known = sum(lower[index][row] * answers[index] for index in range(row + 1, size))
        answers[row] = (answers[row] - known) / lower[row][row]
    return answers
