"""Catalogue and prices: every figure has a source and a date, and figures that cannot be are refused in words."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import pytest

import capacity
from capacity.catalogue import owned_hourly, read_catalogue, read_prices, stale
from capacity.errors import PlanRefused

SHIPPED = Path(capacity.__file__).parent / "accelerators.toml"
CARD = """
[[accelerator]]
name = "card"
memory_gb = 80
bandwidth_tb_s = 3.35
tflops_bf16 = 989
tflops_fp8 = 1979
watts = 700
dense = true
source = "its data sheet"
date = 2026-11-01
"""
PRICES = """
currency = "USD"
[[price]]
name = "card by the hour"
accelerator = "card"
hourly = "2.50"
source = "an offer by mail"
date = 2026-11-01
"""


def written(folder: Path, text: str, name: str = "file.toml") -> Path:
    """Write a file and return its path."""
    path = folder / name
    path.write_text(text)
    return path


def test_shipped_catalogue_reads() -> None:
    cards = read_catalogue(SHIPPED)
    assert set(cards) == {"a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm", "gb200", "l40s", "l4"}
    assert cards["h100-sxm"].bf16 == 989e12 and cards["l4"].link is None and cards["a100-sxm"].fp8 is None
    assert all(card.source and card.date for card in cards.values())


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("dense = true\n", "", "without sparsity"),
        ("tflops_fp8 = 1979", "tflops_fp8 = 3958", "with sparsity"),
        ('source = "its data sheet"\n', "", "where the figures are from"),
        ("date = 2026-11-01", 'date = "lately"', "of which day"),
        ("memory_gb = 80", "memory_gb = -80", "lies between"),
        ("memory_gb = 80", "memory_gb = nan", "lies between"),
        ("memory_gb = 80", "memory_gb = true", "is a number"),
        ("bandwidth_tb_s = 3.35", "bandwidth_tb_s = 3350", "lies between"),
        ("[[accelerator]]", "[[accelerators]]", r"has no \[\[accelerator\]\]"),
        ("watts = 700", "watts = ", "not TOML"),
    ],
)
def test_figures_that_cannot_be(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(PlanRefused, match=words):
        read_catalogue(written(tmp_path, CARD.replace(old, new)))


def test_twice_the_same_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match="card twice"):
        read_catalogue(written(tmp_path, CARD + CARD))


def test_prices(tmp_path: Path) -> None:
    cards = read_catalogue(written(tmp_path, CARD))
    found = read_prices(written(tmp_path, PRICES, "prices.toml"), cards)
    assert found.currency == "USD" and found.prices[0].hourly == 2_500_000 and not found.prices[0].reserved
    assert stale(found, datetime.date(2026, 12, 1)) == ()
    assert "31 days old (an offer by mail)" in stale(found, datetime.date(2026, 12, 2))[0]
    assert "after today" in stale(found, datetime.date(2026, 10, 1))[0]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "card by the hour"', 'name = "card by the hour"\ncurrency = "EUR"', "a plan has one currency"),
        ('currency = "USD"', 'currency = "$"', "three capitals"),
        ('accelerator = "card"', 'accelerator = "other"', "the catalogue has not"),
        ('hourly = "2.50"', "hourly = 2.50", "in quotes"),
        ('hourly = "2.50"', 'hourly = "-1"', "cannot be"),
        ('hourly = "2.50"', 'hourly = "0"', "more than nothing"),
        ('hourly = "2.50"', 'hourly = "2.50"\ncommitment = "forever"', "commitment is"),
        ('hourly = "2.50"', 'hourly = "2.50"\nquota = 1.5', "whole number"),
    ],
)
def test_prices_that_cannot_be(tmp_path: Path, old: str, new: str, words: str) -> None:
    cards = read_catalogue(written(tmp_path, CARD))
    with pytest.raises(PlanRefused, match=words):
        read_prices(written(tmp_path, PRICES.replace(old, new), "prices.toml"), cards)


def test_own_machine_costs_what_is_paid_back_and_what_it_uses() -> None:
    terms = {"kilowatts": Decimal(1), "pue": Decimal("1.5"), "duty": Decimal("0.5"), "kilowatt_hour": Decimal("0.2")}
    hourly = owned_hourly(capex=Decimal(8760), years=Decimal(1), rate=Decimal(0), yearly=Decimal(876), **terms)
    assert hourly == 1_000_000 + 150_000 + 100_000
    dearer = owned_hourly(capex=Decimal(8760), years=Decimal(1), rate=Decimal("0.1"), yearly=Decimal(876), **terms)
    assert dearer == hourly + 100_000  # a year's interest, paid at its end
