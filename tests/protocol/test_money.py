"""Money as text: exact to the last unit, by one function, and never by way of a float."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest

import protocol
from protocol.money import CENTS, decimal, usd

ROOT = Path(protocol.__file__).parents[1]
PACKAGES = ("billing", "creator_cli", "devstack", "marketplace", "protocol")
# An amount in dollars that a format rounds, and a division of nano-dollars or cents into dollars.
ROUNDED = re.compile(
    r"\$\{[^{}]*:[^{}]*f\}|(?:nano|cost|spent|amount)\w*\)? / (?:1e9|1_000_000_000|10\*\*9)|cents\)? / 100\b"
)
FIGURES = {"marketplace/watch/rules.py"}  # dollars per hour as a statistic, beside others in per cent and seconds


@pytest.mark.parametrize(
    ("amount", "unit", "text"),
    [
        (300, 9, "$0.0000003"),
        (400, 9, "$0.0000004"),
        (1, 9, "$0.000000001"),
        (0, 9, "$0.00"),
        (1_500_000_000, 9, "$1.50"),
        (-7, 9, "-$0.000000007"),
        (2**63 - 1, 9, "$9,223,372,036.854775807"),
        (123_456, CENTS, "$1,234.56"),
        (1, 12, "$0.000000000001"),
    ],
)
def test_an_amount_is_printed_to_its_last_digit(amount: int, unit: int, text: str) -> None:
    assert usd(amount, unit) == text
    assert Decimal(text.replace("$", "").replace(",", "")).scaleb(unit) == amount


def test_a_number_for_a_file_has_the_decimals_that_its_column_has() -> None:
    assert decimal(-1_234_500_000_000) == "-1234.500000000"
    assert decimal(1_234_500_000_000, 2, grouped=True) == "1,234.50"
    with pytest.raises(AssertionError):
        decimal(1, 2)


def test_no_amount_is_printed_by_way_of_a_float() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in FIGURES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if ROUNDED.search(line) and "Decimal(" not in line
    ]
    assert found == []
