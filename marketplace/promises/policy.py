"""Rules of promises as functions of values: when one is broken, and what of the spending goes back.

Integers alone. Shares are basis points, times milliseconds, amounts nano-dollars.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from billing.pricing import BASIS_POINTS

Kind = Literal["ttft", "valid"]

LEAST_CALLS = 100  # of one consumer in the month: fewer say little about a share of 5 %
LATE_BPS = 500  # a p95 within the bound leaves one call of twenty for later ones
LONGEST_PROMPT = 2_048  # tokens that are not cached; the time of a longer prompt is that of computing it
MIN_TTFT_MS, MAX_TTFT_MS = 50, 120_000
MIN_VALID_BPS, MAX_VALID_BPS = 5_000, 9_990

# Missed calls above so many times the allowed share give back so much of the spending; the first that fits.
_STEPS = ((10, 10_000), (5, 5_000), (2, 2_500), (1, 1_000))


def allowed_bps(kind: Kind, bound: int) -> int:
    """Return the share of calls that may miss the bound while the promise is kept."""
    return LATE_BPS if kind == "ttft" else BASIS_POINTS - bound


def refund_bps(*, calls: int, missed: int, allowed: int) -> int:
    """Return the share of the spending that goes back: 0 if the promise was kept, or LEAST_CALLS is not reached."""
    if calls < LEAST_CALLS:
        return 0
    return next((back for times, back in _STEPS if missed * BASIS_POINTS > times * allowed * calls), 0)


def refund_nano_usd(*, spent: int, share: int, bps: int) -> int:
    """Return the refund: `bps` of what was spent, rounded down, and at most what the bearer earned of it."""
    return max(0, min(spent * bps // BASIS_POINTS, share))


def percentile_95(times: Mapping[int, int]) -> int | None:
    """Return the p95 of a histogram of times: the least that at most one call of twenty exceeds; None without calls."""
    calls = sum(times.values())
    later = calls
    for time in sorted(times):
        later -= times[time]
        if later * BASIS_POINTS <= LATE_BPS * calls:
            return time
    return None
