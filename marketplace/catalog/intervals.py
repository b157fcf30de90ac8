"""Confidence intervals of shares, as pure functions."""

from __future__ import annotations

from math import sqrt

Z_95 = 1.959964


def wilson(correct: int, rows: int) -> tuple[float, float]:
    """Return the 95 % interval of a share by Wilson's score, from 0 to 1 each; (0, 1) for no rows at all."""
    if rows == 0:
        return 0.0, 1.0
    share, z2 = correct / rows, Z_95 * Z_95
    middle = share + z2 / (2 * rows)
    reach = Z_95 * sqrt(share * (1 - share) / rows + z2 / (4 * rows * rows))
    scale = 1 + z2 / rows
    return max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale)
