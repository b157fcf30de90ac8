"""Costs by the million tokens, the margin, and the weight of each input."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import pytest

from capacity.cost import margin, token_cost, tornado
from capacity.errors import PlanRefused


def test_three_costs_of_a_million_tokens_differ_by_what_idles() -> None:
    # Two hours of a machine at 3.6 an hour, 100 tokens a call: 10 calls/s, then 1.
    found = token_cost([3_600_000, 3_600_000], [10.0, 1.0], 100.0, 3_600_000, 20.0)
    assert found.at_rate == 500_000  # 7.2 million tokens an hour
    assert found.worst == 10_000_000  # 0.36 million tokens an hour
    assert found.mean == 1_818_182  # 7.2 for 3.96 million, rounded up
    assert token_cost([1], [0.0], 100.0, 1, 0.0).mean is None
    with pytest.raises(PlanRefused, match="same hours"):
        token_cost([1], [], 1.0, 1, 1.0)


def test_margin_adds_up() -> None:
    found = margin(1_000_001, 200_000, creator_share=Fraction(7, 10), fee_share=Fraction(3, 100))
    assert (found.creators, found.fees) == (700_001, 30_001)  # what is owed is rounded up
    assert found.revenue == found.creators + found.fees + found.machines + found.net
    assert margin(0, 5, creator_share=Fraction(0), fee_share=Fraction(0)).share is None
    with pytest.raises(PlanRefused):
        margin(1, 1, creator_share=Fraction(2), fee_share=Fraction(0))


def test_tornado_puts_the_heaviest_input_first() -> None:
    def outcome(inputs: Mapping[str, float]) -> int | None:
        if inputs["limit"] < 1:
            return None  # no fleet serves
        return round(100 * inputs["price"] + inputs["power"])

    found = tornado({"power": 10.0, "price": 1.0, "limit": 1.0}, outcome)
    assert [one.name for one in found] == ["limit", "price", "power"]
    assert found[0].smaller is None and (found[1].smaller, found[1].greater) == (90, 130)
