"""Confidence intervals of measured shares."""

from __future__ import annotations

from math import sqrt

Z = 1.959964  # of 95 %


def wilson(correct: int, rows: int) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a share of which `correct` of `rows` (≥ 1) were measured.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference" (1927). Raises ValueError for
    counts that are no share.
    """
    if not 0 <= correct <= rows or rows < 1:
        raise ValueError(f"{correct} of {rows} is no share")
    share = correct / rows
    middle = share + Z * Z / (2 * rows)
    half = Z * sqrt(share * (1 - share) / rows + Z * Z / (4 * rows * rows))
    whole = 1 + Z * Z / rows
    return max(0.0, (middle - half) / whole), min(1.0, (middle + half) / whole)
