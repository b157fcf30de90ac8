"""The evidence that one of two models answers better, as an e-value over discordant rows. Pure.

A row is discordant when exactly one side is right. If both sides were equally good, each discordant row would be a fair
coin, and the e-value (the Beta(½, ½) mixture of all coins against the fair one) a martingale that begins at 1. By
Ville's inequality it reaches 20 in at most 1 of 20 such runs, at whatever row one looks or stops (Johari et al. 2017,
"Peeking at A/B tests"; Ramdas et al. 2023, "Game-theoretic statistics and safe anytime-valid inference").
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

THRESHOLD = 20.0  # at most one of so many runs of equal models is decided
LOG_THRESHOLD = math.log(THRESHOLD)
_LOG_TWO, _LOG_PI = math.log(2.0), math.log(math.pi)  # B(½, ½) = π


def log_e_value(a_wins: int, b_wins: int) -> float:
    """Return the natural logarithm of the e-value after so many discordant rows; 0 before the first.

    E = B(a + ½, b + ½) / B(½, ½) · 2^(a + b), which overflows no float in log space however many rows there are.
    """
    rows = a_wins + b_wins
    beta = math.lgamma(a_wins + 0.5) + math.lgamma(b_wins + 0.5) - math.lgamma(rows + 1.0)
    return beta - _LOG_PI + rows * _LOG_TWO


@dataclass(frozen=True, slots=True)
class Step:
    """The run after one row: `row` counts from 1, and the wins are those of both sides so far."""

    row: int
    a_wins: int
    b_wins: int
    log_e: float

    @property
    def decided(self) -> bool:
        return self.log_e >= LOG_THRESHOLD


def path(winners: Iterable[int]) -> list[Step]:
    """Return the steps of a run, up to the one that decides it. A winner is -1 (A), 1 (B) or 0 (neither)."""
    steps: list[Step] = []
    a_wins = b_wins = 0
    for row, winner in enumerate(winners, start=1):
        a_wins += winner < 0
        b_wins += winner > 0
        steps.append(Step(row, a_wins, b_wins, log_e_value(a_wins, b_wins)))
        if steps[-1].decided:
            break
    return steps


def better(step: Step | None) -> str:
    """Return the side that a decided run found better, A or B; empty if it is not decided."""
    if step is None or not step.decided:
        return ""
    return "B" if step.b_wins > step.a_wins else "A"
