"""The cost of a prediction: pure integer arithmetic, no I/O.

Prices are integer micro-dollars per million tokens, which is the same number in pico-dollars per token. The ledger
counts nano-dollars. The cost of a prediction is a sum in pico-dollars times the multiplier of its latency class,
rounded up to nano-dollars once, less what the creator gives for free. `cost_nano_usd` is the one function: calculators,
quotes and holds call it, and settlements call its twin in the database, `billing_gross_nano_usd` (migration 0014); a
property test keeps the two equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

PICO_PER_NANO = 1_000
NANO_PER_CENT = 10_000_000
BASIS_POINTS = 10_000


def _require_counts(value: object) -> None:
    """Raise unless every field of the dataclass instance is a non-negative int (a float or a bool is not an amount)."""
    for field in fields(value):  # type: ignore[arg-type]
        number = getattr(value, field.name)
        if type(number) is not int:
            raise TypeError(f"{field.name} must be an int, not {type(number).__name__}")
        if number < 0:
            raise ValueError(f"{field.name} must not be negative")


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one model in one latency class, whose multiplier is `class_bps` basis points (10,000 is 1 ×).

    Raises TypeError for anything but ints, ValueError for negative numbers.
    """

    input_micro_usd_per_mtok: int
    cached_input_micro_usd_per_mtok: int
    output_micro_usd_per_mtok: int
    per_prediction_nano_usd: int = 0
    class_bps: int = BASIS_POINTS

    def __post_init__(self) -> None:
        _require_counts(self)


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one prediction. `cached_tokens` is the part of `prompt_tokens` found in the prefix cache.

    Raises TypeError for anything but ints, ValueError for negative or contradictory numbers.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    def __post_init__(self) -> None:
        _require_counts(self)
        if self.cached_tokens > self.prompt_tokens:
            raise ValueError("cached_tokens is part of prompt_tokens and cannot be larger")


def cost_nano_usd(price: Price, usage: TokenUsage, *, allowance_nano_usd: int = 0) -> int:
    """Return the cost of `usage` at `price` in nano-dollars, rounded up once. Monotone in every token count.

    `allowance_nano_usd` is what the creator gives for free at most; the cost never falls below 0.
    """
    pico = (
        (usage.prompt_tokens - usage.cached_tokens) * price.input_micro_usd_per_mtok
        + usage.cached_tokens * price.cached_input_micro_usd_per_mtok
        + usage.completion_tokens * price.output_micro_usd_per_mtok
        + price.per_prediction_nano_usd * PICO_PER_NANO
    )
    gross = -(-pico * price.class_bps // (BASIS_POINTS * PICO_PER_NANO))
    return gross - min(allowance_nano_usd, gross)


def worst_case_nano_usd(price: Price, max_prompt_tokens: int, max_tokens: int) -> int:
    """Return the highest cost within these limits, in nano-dollars: the amount of the hold.

    All of the prompt counts as the dearer of plain and cached input, and nothing is given for free.
    """
    cached = max_prompt_tokens if price.cached_input_micro_usd_per_mtok > price.input_micro_usd_per_mtok else 0
    return cost_nano_usd(price, TokenUsage(max_prompt_tokens, cached, max_tokens))


def apportion(amount: int, weights: Sequence[int]) -> list[int]:
    """Divide `amount` in proportion to `weights` by largest remainder; ties go to the earlier weight.

    The parts sum to `amount`, and are all 0 if the weights are. Raises ValueError for negative numbers.
    """
    if amount < 0 or min(weights, default=0) < 0:
        raise ValueError("amounts and weights must not be negative")
    total = sum(weights)
    if total == 0:
        return [0] * len(weights)
    parts = [amount * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda place: (-(amount * weights[place] % total), place))
    for place in by_remainder[: amount - sum(parts)]:
        parts[place] += 1
    return parts


def shares(cost: int, payees_bps: Sequence[int]) -> tuple[list[int], int]:
    """Divide `cost` among payees and the platform: the payees' shares in their order, and the platform's rest.

    The payees' pool is rounded down and divided by largest remainder, so one payee gets its basis points rounded down.
    The database computes the same in `billing_shares` (migration 0020). Raises ValueError for shares that exceed 10,000
    basis points, and for negative numbers.
    """
    if sum(payees_bps) > BASIS_POINTS:
        raise ValueError("the payees' shares exceed 10,000 basis points")
    pool = cost * sum(payees_bps) // BASIS_POINTS
    return apportion(pool, payees_bps), cost - pool
