"""The cost of a copy of a model: the pure figures."""

from __future__ import annotations

from billing.pricing import Price, TokenUsage, cost_nano_usd
from marketplace.catalog import copying

CALL = TokenUsage(prompt_tokens=300, cached_tokens=200, completion_tokens=12)


def test_a_copy_costs_as_much_as_its_calls() -> None:
    price = Price(60_000, 6_000, 240_000, 500, 10_000)
    assert copying.calls_for_a_copy() == 1_600
    assert copying.copy_price_nano_usd(price=price, call=CALL) == 1_600 * cost_nano_usd(price, CALL)


def test_a_flat_price_makes_a_copy_cost_what_was_asked_for_and_a_nano_dollar_less_does_not() -> None:
    flat = copying.flat_price_nano_usd()
    free_tokens = TokenUsage(1, 0, 1)

    def cost(each: int) -> int:
        return copying.copy_price_nano_usd(price=Price(0, 0, 0, each, 10_000), call=free_tokens)

    assert cost(flat) >= copying.CHEAP_COPY_NANO_USD > cost(flat - 1)
