"""The part of a standing that everybody may see. Payers and weeks come in steps, so that no single tenant shows."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from marketplace.catalog.models import Model, Standing
from marketplace.catalog.standings import LAST_PLACE

PAYER_STEPS = (5, 10, 25, 50, 100, 250, 1_000)
WEEK_STEPS = (2, 4, 8, 13, 26, 39, 52)
MIN_CALLS = 100  # below, a share of answered calls says more about callers than about the model


@dataclass(frozen=True, slots=True)
class PublicStanding:
    """The place of a model, and its reasons. None: not known; 0: below the first step, so not told."""

    place: int | None
    quality_low: float | None
    quality_rows: int | None
    uptime: float | None
    payers_at_least: int
    weeks_at_least: int

    @property
    def level(self) -> int:
        """Return how many of the steps of payers are reached."""
        return bisect_right(PAYER_STEPS, self.payers_at_least)


def public_standing(model: Model) -> PublicStanding | None:
    """Return what everybody may see of the model's standing; None for a model that is not listed."""
    standing: Standing | None = getattr(model, "standing", None)
    if standing is None:
        return None
    payers = _step(PAYER_STEPS, standing.payers)
    calls = standing.served + standing.lost
    return PublicStanding(
        place=None if standing.place == LAST_PLACE else standing.place,
        quality_low=standing.quality_low,
        quality_rows=None if standing.quality_low is None else standing.quality_rows,
        uptime=standing.served / calls if calls >= MIN_CALLS else None,
        payers_at_least=payers,
        weeks_at_least=_step(WEEK_STEPS, standing.weeks) if payers else 0,
    )


def _step(steps: tuple[int, ...], value: int) -> int:
    """Return the largest step that `value` reaches, or 0."""
    reached = bisect_right(steps, value)
    return steps[reached - 1] if reached else 0
