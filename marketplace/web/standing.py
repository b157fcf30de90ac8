"""Pictures of standings and of the formula behind them. Geometry is in units of an SVG's viewBox."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log2
from typing import Any

from marketplace.catalog.models import Model
from marketplace.standing import formula
from marketplace.standing.public import PAYER_STEPS, PublicStanding, public_standing
from marketplace.standing.shelf import NEW_FOR

CURVE_WIDTH, CURVE_HEIGHT, CURVE_USD = 320, 120, 64


@dataclass(frozen=True)
class StandingPicture:
    """Three small bars of 0 to 100, and the words beside them."""

    facts: PublicStanding
    quality: float
    uptime: float
    demand: float

    @property
    def payers(self) -> str:
        """The paying cards, in words."""
        if not self.facts.payers_at_least:
            return f"fewer than {PAYER_STEPS[0]} paying cards"
        return f"{self.facts.payers_at_least:,} or more paying cards"

    @property
    def words(self) -> str:
        """Everything, for readers who do not see the picture."""
        facts = self.facts
        quality = "not measured" if facts.quality_low is None else f"quality {self.quality:.0f}% or better"
        uptime = "uptime not known yet" if facts.uptime is None else f"uptime {self.uptime:.1f}%"
        return f"Standing: {quality}, {uptime}, {self.payers}"


def picture_of(model: Model) -> StandingPicture | None:
    """Return the picture of a model's standing; None for a model that is not in the catalogue."""
    facts = public_standing(model)
    if facts is None:
        return None
    return StandingPicture(
        facts=facts,
        quality=round(100 * (facts.quality_low or 0), 1),
        uptime=floor(1_000 * (facts.uptime or 0)) / 10,  # 99.96 % is not 100 %
        demand=round(100 * facts.level / len(PAYER_STEPS), 1),
    )


def ranking_page() -> dict[str, Any]:
    """Return the figures of the formula, so that the page cannot say others than the task uses."""
    return {
        "quality_points": int(formula.QUALITY_POINTS),
        "uptime_points": int(formula.UPTIME_POINTS),
        "uptime_from": int(formula.QUALITY_POINTS),
        "demand_points": int(formula.DEMAND_POINTS),
        "demand_from": int(formula.QUALITY_POINTS + formula.UPTIME_POINTS),
        "min_rows": formula.MIN_ROWS,
        "prior_percent": round(100 * formula.PRIOR_QUALITY),
        "trust_at": formula.TRUST_AT,
        "worst_uptime_percent": round(100 * formula.WORST_UPTIME),
        "uptime_days": formula.UPTIME_DAYS,
        "ceiling": int(formula.PAYER_CEILING),
        "ceiling_usd": round(2**formula.PAYER_CEILING - 1),
        "half_demand": int(formula.HALF_DEMAND),
        "min_weeks": formula.MIN_WEEKS,
        "ripens_days": formula.CARD_RIPENS.days,
        "half_life_weeks": int(formula.HALF_LIFE_WEEKS),
        "memory_weeks": formula.MEMORY_WEEKS,
        "new_days": NEW_FOR.days,
        "curve": _curve(),
        "curve_usd": CURVE_USD,
    }


def _curve() -> str:
    """Return the points of min(log₂(1 + $), 5) over 0 to 64 dollars of one payer."""
    points = []
    for usd in range(CURVE_USD + 1):
        height = min(log2(1 + usd), formula.PAYER_CEILING) / formula.PAYER_CEILING
        points.append(f"{usd * CURVE_WIDTH / CURVE_USD:.1f},{CURVE_HEIGHT * (1 - height):.1f}")
    return " ".join(points)
