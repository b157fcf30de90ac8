"""The lines that the cost of one prediction is made up of, in pico-dollars: a token's price is a whole number of them.

The lines sum to what `billing.pricing.cost_nano_usd` rounds up, once, to nano-dollars.
"""

from __future__ import annotations

from dataclasses import dataclass

from billing.models import Usage
from billing.pricing import BASIS_POINTS, PICO_PER_NANO


@dataclass(frozen=True, slots=True)
class CostLine:
    """One line. `tokens` and `micro_usd_per_mtok` are None where the line is no count of tokens."""

    text: str
    pico_usd: int
    tokens: int | None = None
    micro_usd_per_mtok: int | None = None


def cost_lines(row: Usage) -> list[CostLine]:
    """Return the lines of a prediction's cost, above the sum that was charged."""
    counted = [
        (
            "Prompt, the part that was not cached",
            row.prompt_tokens - row.cached_tokens,
            row.input_micro_usd_per_mtok,
        ),
        ("Cached part of the prompt", row.cached_tokens, row.cached_input_micro_usd_per_mtok),
        ("Answer", row.completion_tokens, row.output_micro_usd_per_mtok),
    ]
    lines = [CostLine(text, tokens * price, tokens, price) for text, tokens, price in counted]
    if row.per_prediction_nano_usd:
        lines.append(CostLine("Flat price of a prediction", row.per_prediction_nano_usd * PICO_PER_NANO))
    plain = sum(line.pico_usd for line in lines)
    if row.class_bps != BASIS_POINTS:
        more = -(-plain * row.class_bps // BASIS_POINTS) - plain
        lines.append(CostLine(f"Latency class {row.latency_class}", more))
    rest = row.cost_nano_usd * PICO_PER_NANO + row.allowance_nano_usd * PICO_PER_NANO
    if rounding := rest - sum(line.pico_usd for line in lines):
        lines.append(CostLine("Rounded up to a nano-dollar", rounding))
    if row.allowance_nano_usd:
        lines.append(CostLine("Free of charge, a gift of the creator", -row.allowance_nano_usd * PICO_PER_NANO))
    return lines
