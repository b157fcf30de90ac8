"""`POST /v1/quote`: the worst case, and what is typical by the lengths of earlier predictions."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async

from billing.pricing import TokenUsage, cost_nano_usd
from marketplace.catalog.services import set_price
from marketplace.gateway import quotes
from marketplace.gateway.quotes import Lengths
from tests.marketplace.gateway.conftest import World, money
from tests.marketplace.gateway.scripted_replica import TOKENS

TERMS = {"input_micro_usd_per_mtok": 1_000_000, "output_micro_usd_per_mtok": 3_000_000}


@pytest.mark.asyncio(loop_scope="module")
async def test_the_typical_cost_comes_from_measured_lengths(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotes, "LEAST_PREDICTIONS", 3)
    unknown = await (await world.http.post("/v1/quote", json=world.body())).json()
    assert unknown["typical_nano_usd"] is None and unknown["typical"] is None
    for _ in range(3):
        assert (await world.http.post("/v1/chat/completions", json=world.body())).status == 200
    before = await money(world)
    world.let_pass(quotes.MEASURED_SECONDS)
    quote = await (await world.http.post("/v1/quote", json=world.body())).json()
    typical = quote["typical"]
    assert typical["measured_predictions"] == 3
    # The replica counts 10 prompt tokens, 4 of them cached: medians in thousandths, rounded.
    assert (typical["completion_tokens"], typical["prompt_tokens"]) == (len(TOKENS), 10)
    usage = TokenUsage(typical["prompt_tokens"], typical["cached_tokens"], typical["completion_tokens"])
    price = (await sync_to_async(world.model.prices.get)()).point()
    assert quote["typical_nano_usd"] == cost_nano_usd(price, usage)
    assert quote["minimum_nano_usd"] < quote["typical_nano_usd"] < quote["worst_case_nano_usd"]
    assert await money(world) == before


@pytest.mark.asyncio(loop_scope="module")
async def test_the_service_tier_and_what_is_free_are_in_the_quote(world: World) -> None:
    free = {"monthly_free_nano_usd": 1_000, "intro_free_nano_usd": 500}
    await sync_to_async(set_price)(model=world.model, interactive_bps=20_000, batch_bps=5_000, **free, **TERMS)
    asked = {
        tier: await (await world.http.post("/v1/quote", json=world.body(service_tier=tier))).json()
        for tier in ("flex", "default", "priority")
    }
    gross = {tier: quote["worst_case_nano_usd"] + quote["free_nano_usd"] for tier, quote in asked.items()}
    assert gross["priority"] == 2 * gross["default"] == 4 * gross["flex"]
    assert {quote["free_nano_usd"] for quote in asked.values()} == {1_500}
    assert [quote["latency_class"] for quote in asked.values()] == ["batch", "standard", "interactive"]


def test_typical_lengths_stay_within_the_requests_bounds() -> None:
    measured = Lengths(predictions=20, completion_tokens=90, prompt_permille=250, cached_permille=500)
    assert measured.typical(most_prompt=1000, most_completion=64, completions=1) == TokenUsage(250, 125, 64)
    assert measured.typical(most_prompt=1, most_completion=1000, completions=3) == TokenUsage(1, 0, 270)
    few = Lengths(predictions=19, completion_tokens=90, prompt_permille=250, cached_permille=500)
    assert few.typical(most_prompt=1000, most_completion=64, completions=1) is None
