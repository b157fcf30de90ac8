"""Costs of a fleet (step 13): by the million tokens, the margin against the price list, and each input's weight.

Money is counted in whole millionths of the currency.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from capacity.errors import PlanRefused

SWING = 0.2


@dataclass(frozen=True)
class TokenCost:
    """Cost of a million output tokens, in millionths of the currency, at three loads; None where nothing is sold.

    at_rate: at the highest rate within the promise; mean: over all hours; worst: in the quietest hour
    """

    at_rate: int | None
    mean: int | None
    worst: int | None


@dataclass(frozen=True)
class Margin:
    """A month's money in millionths. net: revenue − creators − fees − machines."""

    revenue: int
    creators: int
    fees: int
    machines: int

    @property
    def net(self) -> int:
        """Return what is left, below 0 for a loss."""
        return self.revenue - self.creators - self.fees - self.machines

    @property
    def share(self) -> float | None:
        """Return `net` over the revenue; None without revenue."""
        return self.net / self.revenue if self.revenue else None


@dataclass(frozen=True)
class Swing:
    """An input's weight: the outcome when it is 20 % smaller and 20 % greater. None: no fleet serves then."""

    name: str
    smaller: int | None
    greater: int | None

    @property
    def width(self) -> float:
        """Return how far apart both outcomes lie; infinite where one of them is none."""
        if self.smaller is None or self.greater is None:
            return math.inf
        return abs(self.greater - self.smaller)


def token_cost(
    hourly: Sequence[int], calls: Sequence[float], output_tokens: float, best_hourly: int, best_rate: float
) -> TokenCost:
    """Return the cost of a million output tokens.

    hourly: the fleet's cost of each hour, millionths; calls: calls/s of each hour; output_tokens: mean of a call;
    best_hourly, best_rate: cost of an hour, and calls/s, at the highest rate within the promise
    """
    if len(hourly) != len(calls):
        raise PlanRefused(13, "costs and calls are of the same hours")
    per_hour = [rate * output_tokens * 3600 for rate in calls]
    tokens = sum(per_hour)
    quiet = [(cost, made) for cost, made in zip(hourly, per_hour, strict=True) if made > 0]
    return TokenCost(
        _a_million(best_hourly, best_rate * output_tokens * 3600),
        _a_million(sum(hourly), tokens),
        max((_a_million(cost, made) or 0 for cost, made in quiet), default=None),
    )


def margin(revenue: int, machines: int, *, creator_share: Fraction, fee_share: Fraction) -> Margin:
    """Return a month's margin. revenue, machines: millionths; the shares: parts of the revenue, 0 to 1."""
    if not (0 <= creator_share <= 1 and 0 <= fee_share <= 1):
        raise PlanRefused(13, "shares of the revenue lie between 0 and 1")
    return Margin(revenue, math.ceil(revenue * creator_share), math.ceil(revenue * fee_share), machines)


def tornado(inputs: Mapping[str, float], outcome: Callable[[Mapping[str, float]], int | None]) -> list[Swing]:
    """Return each input's weight, the heaviest first. outcome: the plan's cost, None without a fleet."""
    swings = [
        Swing(
            name,
            outcome({**inputs, name: value * (1 - SWING)}),
            outcome({**inputs, name: value * (1 + SWING)}),
        )
        for name, value in inputs.items()
    ]
    return sorted(swings, key=lambda one: (-one.width, one.name))


def _a_million(cost: int, tokens: float) -> int | None:
    return math.ceil(cost * 1_000_000 / tokens) if tokens > 0 else None
