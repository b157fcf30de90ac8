"""Prices: integers only, rounded once, monotone, and the same in Python as in the database."""

from __future__ import annotations

import os
from dataclasses import astuple, replace

import pytest
from django.db import connection
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from billing.pricing import Price, TokenUsage, cost_nano_usd, shares, worst_case_nano_usd

# Hypothesis examples against the database; `PRICING_EXAMPLES=100000` searches for longer.
EXAMPLES = int(os.environ.get("PRICING_EXAMPLES", "60"))

rates = st.integers(0, 10**10)
tokens = st.integers(0, 10**7)
prices = st.builds(Price, rates, rates, rates, st.integers(0, 10**11), st.integers(0, 100_000))
usages = st.tuples(tokens, tokens, tokens).map(lambda counts: TokenUsage(max(counts[:2]), min(counts[:2]), counts[2]))


def test_a_price_in_micro_dollars_per_million_tokens_is_pico_dollars_per_token() -> None:
    one_dollar_per_million = Price(1_000_000, 500_000, 2_000_000)
    assert cost_nano_usd(one_dollar_per_million, TokenUsage(1_000_000, 0, 0)) == 10**9
    assert cost_nano_usd(one_dollar_per_million, TokenUsage(1_000_000, 1_000_000, 0)) == 5 * 10**8
    assert cost_nano_usd(one_dollar_per_million, TokenUsage(0, 0, 1_000_000)) == 2 * 10**9


def test_a_prediction_is_rounded_up_once_and_not_per_part() -> None:
    # Three parts of one pico-dollar each: three nano-dollars if each were rounded, one when rounded once.
    assert cost_nano_usd(Price(1, 1, 1), TokenUsage(2, 1, 1)) == 1
    assert cost_nano_usd(Price(0, 0, 1_001, 7), TokenUsage(0, 0, 1)) == 2 + 7


def test_the_latency_class_multiplies_tokens_and_flat_price_before_the_rounding() -> None:
    batch, interactive = Price(3_000, 0, 0, 5, class_bps=5_000), Price(3_000, 0, 0, 5, class_bps=15_000)
    assert cost_nano_usd(batch, TokenUsage(1, 0, 0)) == 4  # half of 3 + 5
    assert cost_nano_usd(interactive, TokenUsage(1, 0, 0)) == 12
    # 1.5 x 1 pico-dollar, twice: rounded once, and never down to nothing.
    assert cost_nano_usd(Price(1, 0, 0, class_bps=15_000), TokenUsage(2, 0, 0)) == 1
    assert cost_nano_usd(Price(10**10, 0, 10**10, 10**11, class_bps=0), TokenUsage(10, 0, 10)) == 0


@given(prices, usages, st.integers(0, 10**18))
def test_an_allowance_makes_a_prediction_cheaper_and_never_pays_for_it(
    price: Price, usage: TokenUsage, allowance: int
) -> None:
    gross = cost_nano_usd(price, usage)
    cost = cost_nano_usd(price, usage, allowance_nano_usd=allowance)
    assert 0 <= cost <= gross and cost == max(0, gross - allowance)


@given(prices, usages, st.integers(0, 1_000))
def test_cost_is_monotone_in_the_class_multiplier(price: Price, usage: TokenUsage, more: int) -> None:
    dearer = replace(price, class_bps=price.class_bps + more)
    assert cost_nano_usd(dearer, usage) >= cost_nano_usd(price, usage)


@given(prices, usages)
def test_the_worst_case_covers_every_usage_within_its_limits(price: Price, usage: TokenUsage) -> None:
    assert cost_nano_usd(price, usage) <= worst_case_nano_usd(price, usage.prompt_tokens, usage.completion_tokens)


@given(prices, usages, st.integers(0, 1_000))
def test_cost_is_monotone_in_tokens(price: Price, usage: TokenUsage, more: int) -> None:
    cost = cost_nano_usd(price, usage)
    assert cost_nano_usd(price, replace(usage, completion_tokens=usage.completion_tokens + more)) >= cost
    assert cost_nano_usd(price, replace(usage, prompt_tokens=usage.prompt_tokens + more)) >= cost


@pytest.mark.parametrize("bad", [1.0, True, "1", None])
def test_amounts_are_never_floats_or_other_lookalikes(bad: object) -> None:
    with pytest.raises(TypeError):
        Price(bad, 0, 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        TokenUsage(1, 0, bad)  # type: ignore[arg-type]


def test_negative_counts_and_more_cached_than_prompt_are_refused() -> None:
    with pytest.raises(ValueError):
        Price(-1, 0, 0)
    with pytest.raises(ValueError):
        TokenUsage(1, 2, 0)
    with pytest.raises(ValueError):
        shares(1, [10_001])
    with pytest.raises(ValueError):
        shares(-1, [5_000])


@pytest.mark.django_db
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prices, usages)
@example(Price(10**10, 10**10, 10**10, 10**11, 100_000), TokenUsage(10**9, 0, 10**9))  # beyond 64 bits in pico-dollars
@example(Price(1, 1, 1, 0, 1), TokenUsage(1, 0, 0))  # a ten-thousandth of a pico-dollar is rounded up
def test_the_database_computes_the_same_cost(price: Price, usage: TokenUsage) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT billing_gross_nano_usd(%s, %s, %s, %s, %s, %s, %s, %s)", [*astuple(price), *astuple(usage)]
        )
        (computed,) = cursor.fetchone()
    assert int(computed) == cost_nano_usd(price, usage)
