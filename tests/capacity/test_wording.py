"""Amounts, figures and dates are written as people read them."""

from __future__ import annotations

import datetime

from capacity.wording import amount, between, count, day, figure, price


def test_amounts_have_currency_separators_and_a_minus() -> None:
    assert amount(1_234_567_890, "USD") == "1,234.57 USD"
    assert amount(12_345, "EUR") == "0.0123 EUR"
    assert amount(-5_000_000, "USD") == "−5.00 USD"
    assert amount(0, "USD") == "0.00 USD"


def test_prices_keep_their_digits() -> None:
    assert price(2_500_000, "USD") == "2.50 USD" and price(83_125, "EUR") == "0.083125 EUR"


def test_an_interval_of_equal_ends_is_one_amount() -> None:
    assert between(67_200_000, 67_200_000, "USD") == "67.20 USD"
    assert between(67_200_000, 100_800_000, "USD") == "67.20 to 100.80 USD"
    assert between(67_200_000, None, "USD") == "67.20 USD to more than there is on offer"


def test_figures_have_no_more_digits_than_they_are_worth() -> None:
    assert [figure(value) for value in (288_129.0, 5.7222, 0.012345, 0.0)] == ["288,000", "5.72", "0.0123", "0"]
    assert day(datetime.date(2026, 12, 5)) == "5 December 2026"
    assert (count(1, "week"), count(4, "week")) == ("1 week", "4 weeks")
