"""The cost of copying a model through its own API: calls for a copy, times the price of a call. Pure functions.

Measured on the samples, narrow tasks with a rank-16 adapter: one trained like them on the answers to 1,600 messages
answers as they do (70 of 72 right, original 69); on 400, 63. Answers in plain text were enough (docs/copying.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from billing.pricing import Price, TokenUsage, cost_nano_usd
from marketplace.catalog import models

CHEAP_COPY_NANO_USD = 5 * 10**9  # a copy that costs less is worth a word where the price is set
_CALLS = 1_600
_CLASSES = ("interactive", "standard", "batch")


@dataclass(frozen=True, slots=True)
class CopyCost:
    """The cost of `calls` calls in nano-dollars. `predictions`: how many were measured; None: it is the most."""

    calls: int
    nano_usd: int
    predictions: int | None


def calls_for_a_copy() -> int:
    """Return how many answers are enough for a copy of a narrow model."""
    return _CALLS


def copy_price_nano_usd(*, price: Price, call: TokenUsage) -> int:
    """Return what the calls for a copy cost, in nano-dollars, when each uses as much as `call`."""
    return _CALLS * cost_nano_usd(price, call)


def copy_price_of(price: models.Price, call: TokenUsage) -> int:
    """Return what a copier pays at a listing's price: by its cheapest latency class, after what is free."""
    cheapest = min(copy_price_nano_usd(price=price.point(name), call=call) for name in _CLASSES)
    return max(0, cheapest - price.monthly_free_nano_usd - price.intro_free_nano_usd)


def flat_price_nano_usd(*, copy_nano_usd: int = CHEAP_COPY_NANO_USD) -> int:
    """Return the price per prediction, in nano-dollars, at which a copy costs so much whatever its tokens cost."""
    return -(-copy_nano_usd // _CALLS)
