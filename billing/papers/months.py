"""Months (UTC) as papers print them."""

from __future__ import annotations

from calendar import monthrange
from datetime import date


def period_text(month: date) -> str:
    """Return the first and last day of a month."""
    last = month.replace(day=monthrange(month.year, month.month)[1])
    return f"{month:%Y-%m-%d} to {last:%Y-%m-%d} (UTC)"
