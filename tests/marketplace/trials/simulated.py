"""Blind comparisons, simulated: how often equal models are told apart, and after how many rows unequal ones are.

Counts alone, no times: the same seed gives the same table on any machine. Both models are right independently.
"Looking" is the usual test of significance after each row: the sign test's normal approximation, p < .05, from ten
discordant rows on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from marketplace.trials.evidence import LOG_THRESHOLD, log_e_value

SEED = 31
CHUNK = 500  # runs simulated at once
Z_05, LEAST_DISCORDANT = 1.959964, 10


@dataclass(frozen=True, slots=True)
class Outcome:
    """Return the share of runs of at most `rows` rows that decide, and the median row; None if most do not."""

    rows: int
    decided: float
    median: float | None


def simulate(a: float, b: float, *, rows: int, runs: int, seed: int = SEED) -> Outcome:
    """Return what runs of two models with these accuracies come to, by the e-value."""
    table = _table(rows)
    found = []
    for wins in _wins(a, b, rows=rows, runs=runs, seed=seed):
        log_e = table.half[wins.a] + table.half[wins.b] - table.whole[wins.a + wins.b]
        found.append(_first(log_e >= LOG_THRESHOLD, rows))
    return _outcome(np.concatenate(found), rows)


def simulate_looking(accuracy: float, *, rows: int, runs: int, seed: int = SEED) -> Outcome:
    """Return what runs of equal models come to for whoever looks at p < .05 after each row and stops there."""
    found = []
    for wins in _wins(accuracy, accuracy, rows=rows, runs=runs, seed=seed):
        discordant = wins.a + wins.b
        z = np.abs(wins.a - wins.b) / np.sqrt(np.maximum(discordant, 1))
        found.append(_first((z > Z_05) & (discordant >= LEAST_DISCORDANT), rows))
    return _outcome(np.concatenate(found), rows)


@dataclass(frozen=True, slots=True)
class _Wins:
    a: npt.NDArray[np.int64]  # runs × rows, counted so far
    b: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Table:
    """log E of a and b wins is half[a] + half[b] - whole[a + b]."""

    half: npt.NDArray[np.float64]
    whole: npt.NDArray[np.float64]


def _table(rows: int) -> _Table:
    half = np.array([math.lgamma(wins + 0.5) for wins in range(rows + 1)])
    whole = np.array([math.lgamma(n + 1.0) + math.log(math.pi) - n * math.log(2) for n in range(rows + 1)])
    assert math.isclose(half[3] + half[1] - whole[4], log_e_value(3, 1), abs_tol=1e-9)
    return _Table(half, whole)


def _wins(a: float, b: float, *, rows: int, runs: int, seed: int) -> Iterator[_Wins]:
    random = np.random.default_rng(seed)
    for start in range(0, runs, CHUNK):
        shape = (min(CHUNK, runs - start), rows)
        a_right, b_right = random.random(shape) < a, random.random(shape) < b
        yield _Wins(np.cumsum(a_right & ~b_right, axis=1), np.cumsum(b_right & ~a_right, axis=1))


def _first(hit: npt.NDArray[np.bool_], rows: int) -> npt.NDArray[np.int64]:
    return np.where(hit.any(axis=1), hit.argmax(axis=1) + 1, rows + 1)


def _outcome(rows_needed: npt.NDArray[np.int64], rows: int) -> Outcome:
    median = float(np.median(rows_needed))
    return Outcome(rows, float((rows_needed <= rows).mean()), None if median > rows else median)
