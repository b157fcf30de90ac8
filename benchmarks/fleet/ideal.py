"""The fewest replica-hours that bear a day: of one who knows each minute and the time of a start beforehand."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.fleet.demand import Day
from serving.fleet.policy import Limits


def needed(day: Day, limits: Limits, rate: float) -> int:
    """Return the fewest replicas that bear a rate by the table of ceilings."""
    full = rate * day.scene.service / day.scene.seats
    count = max(limits.least, math.ceil(full - 1e-9))
    while count * limits.ceiling_of(count) < full:
        count += 1
    return count


def needs(day: Day, limits: Limits) -> list[int]:
    """Return the fewest replicas that bear the mean demand of each minute."""
    rates = day.rates()
    return [needed(day, limits, float(rates[at : at + 60].mean())) for at in range(0, len(rates), 60)]


def ideal_hours(day: Day, limits: Limits) -> float:
    """Return the replica-hours of replicas that are there exactly while they are needed; their starts cost nothing."""
    return sum(needs(day, limits)) / 60.0


def schedule_hours(day: Day, limits: Limits) -> float:
    """Return the replica-hours of the cheapest schedule whose replicas are ordered a start beforehand.

    A start counts for `ready` seconds, as it does for the policy. So a replica is kept over a gap that is shorter.
    """
    each = np.array(needs(day, limits))
    seconds = 0.0
    for level in range(1, int(each.max()) + 1):
        used = np.flatnonzero(each >= level)
        gaps = np.diff(used) - 1
        seconds += 60.0 * len(used) + float(np.minimum(60.0 * gaps, day.ready)[gaps > 0].sum())
    return seconds / 3_600
