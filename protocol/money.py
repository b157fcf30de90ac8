"""Money as text: whole numbers of a part of a dollar, printed exactly. No float ever holds money."""

from __future__ import annotations

NANO, CENTS = 9, 2  # decimals of the units that amounts are counted in: nano-dollars and cents


def usd(amount: int, unit: int = NANO, *, minus: str = "-") -> str:
    """Return an amount of 10^-`unit` dollars for people, exactly, with two decimals or more: 1500 is $0.0000015."""
    sign, number = (minus, -amount) if amount < 0 else ("", amount)
    whole, fraction = divmod(number, 10**unit)
    return f"{sign}${whole:,}.{f'{fraction:0{unit}d}'.rstrip('0').ljust(2, '0')}"


def decimal(nano: int, decimals: int = NANO, *, grouped: bool = False) -> str:
    """Return nano-dollars for files and columns, as a number with so many decimals. Digits beyond them must be zero."""
    whole, fraction = divmod(abs(nano), 10**NANO)
    assert fraction % 10 ** (NANO - decimals) == 0, "an amount is printed exactly"
    digits = f"{whole:,}" if grouped else str(whole)
    return f"{'-' if nano < 0 else ''}{digits}.{fraction:09d}"[: decimals - NANO or None]
