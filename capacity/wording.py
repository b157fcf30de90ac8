"""Amounts, figures and dates as pages of a plan write them: rounded to what they are worth."""

from __future__ import annotations

import datetime
import math
from fractions import Fraction

from capacity.catalogue import MICRO

MONTH_HOURS = 730  # 8,760 / 12


def amount(micro: int, currency: str) -> str:
    """Return an amount of millionths in words, with two digits, or four below one unit: 1,234.56 USD."""
    size = abs(micro)
    digits = 2 if size >= MICRO or not micro else 4
    value = float(round(Fraction(size, MICRO), digits))
    return f"{'−' if micro < 0 else ''}{value:,.{digits}f} {currency}"


def price(micro: int, currency: str) -> str:
    """Return a price as it was offered, with all its digits."""
    text = f"{micro / MICRO:,.6f}".rstrip("0")
    whole, _, part = text.partition(".")
    return f"{whole}.{part.ljust(2, '0')} {currency}"


def between(low: int, high: int | None, currency: str) -> str:
    """Return two amounts as one interval; high: None where no fleet serves."""
    if high is None:
        return f"{amount(low, currency)} to more than there is on offer"
    first, last = amount(low, currency), amount(high, currency)
    return first if first == last else f"{first.removesuffix(f' {currency}')} to {last}"


def figure(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits, never in powers of ten: 288,000."""
    if not value or not math.isfinite(value):
        return "0" if not value else "–"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):,.{max(0, places)}f}"


def day(date: datetime.date) -> str:
    """Return a date in words: 5 November 2026."""
    return f"{date.day} {date:%B %Y}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 week, 4 weeks."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
