"""The formula by which models are put in order. Pure: docs/ranking.md and the page `/ranking` say the same in words.

A score has up to 100 points: 50 for measured quality, 20 for measured uptime, 30 for demand. Money moves demand alone,
each payer's by its logarithm up to a ceiling, so whatever is spent on a model, it never moves more than these 30 points
and the trust in a measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import log2

from billing.pricing import NANO_PER_CENT
from marketplace.catalog.intervals import wilson

QUALITY_POINTS, UPTIME_POINTS, DEMAND_POINTS = 50.0, 20.0, 30.0
MIN_ROWS = 50  # of an evaluation that counts
PRIOR_QUALITY = 0.5  # of a model that was not measured
TRUST_AT = 10  # payers at which half of what a measurement says above the prior counts
PRIOR_CALLS, PRIOR_SERVED = 100, 99  # a model that was hardly called is taken to be up as others are
WORST_UPTIME = 0.9  # and below: no points
PAYER_CEILING = 5.0  # reached at $31
HALF_DEMAND = 50.0  # ten payers at the ceiling have half of the points
MIN_WEEKS = 2  # in which a payer called the model
CARD_RIPENS = timedelta(days=14)  # after its first use on the platform
HALF_LIFE_WEEKS = 12.0  # of paid money
MEMORY_WEEKS = 52  # older money counts no more
UPTIME_DAYS = 28
NANO_PER_USD = 100 * NANO_PER_CENT


@dataclass(frozen=True, slots=True)
class Payer:
    """All organizations behind one card or one person: the weeks in which they paid for a model, and what they paid.

    The money is what is left of it by now, in nano-dollars: half of it after `HALF_LIFE_WEEKS`.
    """

    weeks: int
    paid_nano_usd: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that the place of a model comes from. `evaluation` is (correct, rows), or None: not measured."""

    payers: Sequence[Payer] = ()
    evaluation: tuple[int, int] | None = None
    served: int = 0  # calls that were answered
    lost: int = 0  # calls that the platform lost


@dataclass(frozen=True, slots=True)
class Score:
    """The points of a model, and the number of payers that count."""

    quality: float
    uptime: float
    demand: float
    payers: int

    @property
    def total(self) -> float:
        """Return the points in all, 0 to 100. Rounded, so that equal evidence gives equal scores on every machine."""
        return round(self.quality + self.uptime + self.demand, 6)


def score(evidence: Evidence) -> Score:
    """Return the points of a model."""
    counted = [payer for payer in evidence.payers if payer.weeks >= MIN_WEEKS and payer.paid_nano_usd > 0]
    return Score(
        quality=QUALITY_POINTS * trusted_quality(quality_low(evidence.evaluation), len(counted)),
        uptime=UPTIME_POINTS * max(0.0, (uptime(evidence.served, evidence.lost) - WORST_UPTIME) / (1 - WORST_UPTIME)),
        demand=DEMAND_POINTS * _share(demand(counted), HALF_DEMAND),
        payers=len(counted),
    )


def quality_low(evaluation: tuple[int, int] | None) -> float | None:
    """Return the lower Wilson bound of a measured accuracy, or None for one of too few rows, and for none at all."""
    return None if evaluation is None or evaluation[1] < MIN_ROWS else wilson(*evaluation)[0]


def trusted_quality(low: float | None, payers: int) -> float:
    """Return the accuracy that counts. Creators choose the rows, so a high one counts as far as payers bear it out.

    A low one counts at once.
    """
    if low is None:
        return PRIOR_QUALITY
    return low if low <= PRIOR_QUALITY else PRIOR_QUALITY + (low - PRIOR_QUALITY) * _share(payers, TRUST_AT)


def uptime(served: int, lost: int) -> float:
    """Return the share of calls that were answered, drawn towards the prior while there are few."""
    return (served + PRIOR_SERVED) / (served + lost + PRIOR_CALLS)


def demand(payers: Sequence[Payer]) -> float:
    """Return Σ min(log₂(1 + paid $), 5) over the payers."""
    return sum(min(log2(1 + payer.paid_nano_usd / NANO_PER_USD), PAYER_CEILING) for payer in payers)


def _share(value: float, half: float) -> float:
    return value / (value + half)
