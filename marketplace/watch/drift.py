"""Drift: how far a window of calls is from the first calls, as the population stability index (PSI).

PSI is Σ (w − b) · ln(w / b) over the shares of bins in window and baseline. For two samples of one source it is not 0
but about (bins − 1) · (1/n + 1/m): with 64 answers, a baseline of 1,000 calls and a window of 200 that is .38, more
than the usual threshold. So bins that expect fewer than 5 calls in the window are put together until they expect 5, and
the expected value is taken off. tests/marketplace/watch/test_drift.py simulates what is left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

BASELINE_CALLS = 1_000
WINDOW_CALLS = 200  # at least, so that 500 shifted calls fill two windows
LOOK, ALERT = 0.1, 0.25  # the field's thresholds: worth a look; shifted
_LEAST_EXPECTED = 5
_PRIOR = 0.5  # calls that each bin has before any came: a new bin has a finite part


def psi(baseline: Sequence[int], window: Sequence[int]) -> float:
    """Return the PSI of two histograms less its expected value for equal sources, at least 0."""
    size = max(len(baseline), len(window))
    before = [*baseline, *[0] * (size - len(baseline))]
    now = [*window, *[0] * (size - len(window))]
    n, m = sum(before), sum(now)
    if not n or not m:
        return 0.0
    bins = _bins(before, now, least=_LEAST_EXPECTED * n / m)
    all_n, all_m = n + _PRIOR * len(bins), m + _PRIOR * len(bins)
    shares = [((b + _PRIOR) / all_n, (w + _PRIOR) / all_m) for b, w in bins]
    index = sum((w - b) * math.log(w / b) for b, w in shares)
    return max(0.0, index - (len(bins) - 1) * (1 / n + 1 / m))


def _bins(before: Sequence[int], now: Sequence[int], *, least: float) -> list[tuple[int, int]]:
    """Return the bins of both histograms, with neighbours of fewer than `least` calls in the baseline put together."""
    bins: list[tuple[int, int]] = []
    open_before, open_now = 0, 0
    for one, other in zip(before, now, strict=True):
        if one >= least:
            bins.append((one, other))
            continue
        open_before, open_now = open_before + one, open_now + other
        if open_before >= least:
            bins.append((open_before, open_now))
            open_before, open_now = 0, 0
    if open_before or open_now:
        bins.append((open_before, open_now))
    return bins
