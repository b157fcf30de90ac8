"""Choice of the drafts' rows that pay: likely tokens against the seconds that their rows add to the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serving.speculation.offer import Offer


@dataclass(frozen=True, slots=True)
class RowCosts:
    """Seconds that rows of drafts add to a step, and the seconds that an accepted token saves.

    near, late: of a row within the first `near_rows`, and of one beyond
    """

    token: float
    near: float
    late: float
    near_rows: int


def choose(offers: Sequence[Offer], costs: RowCosts, most: int) -> list[int]:
    """Return how many leading tokens of each offer to verify, at most `most` in all.

    Rows are taken in falling probability, as long as what a row saves on average is at least what it costs.
    """
    rows = [(-reached, place) for place, offer in enumerate(offers) for reached in offer.reached]
    rows.sort()
    taken = [0] * len(offers)
    for count, (negative, place) in enumerate(rows[:most]):
        seconds = costs.near if count < costs.near_rows else costs.late
        if -negative * costs.token < seconds:
            break
        taken[place] += 1
    return taken
