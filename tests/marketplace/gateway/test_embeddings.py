"""`POST /v1/embeddings` on the marketplace: sold where they have a price, metered by prompt tokens."""

from __future__ import annotations

import openai
import pytest
from asgiref.sync import sync_to_async

from billing.models import Hold, Usage
from marketplace.catalog.services import set_price
from tests.marketplace.gateway.conftest import FUNDS, UNTOUCHED, World, money

pytestmark = pytest.mark.asyncio(loop_scope="module")
TERMS = {"input_micro_usd_per_mtok": 1_000_000, "output_micro_usd_per_mtok": 3_000_000, "per_prediction_nano_usd": 500}


async def test_embeddings_cost_their_own_price_per_prompt_token(world: World) -> None:
    await sync_to_async(set_price)(model=world.model, embedding_micro_usd_per_mtok=200_000, **TERMS)
    body = {"model": "maker/thing", "input": ["good morning", [1, 2, 3]]}
    quote = await (await world.http.post("/v1/quote", json=body)).json()
    assert quote["worst_case_nano_usd"] == (13 + 4) * 200 + 500, "a byte is a token at most"
    client = openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key=world.key_text, max_retries=0)
    answer = await client.embeddings.create(**body, encoding_format="float")
    await client.close()
    assert answer.data[0].embedding == [0.6, 0.8]
    usage, hold = await sync_to_async(Usage.objects.get)(), await sync_to_async(Hold.objects.get)()
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cost_nano_usd) == (10, 0, 10 * 200 + 500)
    assert hold.max_tokens == 0 and hold.amount_nano_usd == quote["worst_case_nano_usd"]
    assert (await money(world))["posted"] == FUNDS - usage.cost_nano_usd


async def test_a_model_without_a_price_of_embeddings_sells_none(world: World) -> None:
    answer = await world.http.post("/v1/embeddings", json={"model": "maker/thing", "input": "a"})
    assert answer.status == 404 and (await answer.json())["error"]["code"] == "not_offered"
    assert await money(world) == {**UNTOUCHED, "holds": []}


async def test_an_input_that_is_none_is_refused_before_money_is_set_aside(world: World) -> None:
    for wrong in ("", [], [[]], 7, None, {"a": 1}, ["a"] * 2049):
        answer = await world.http.post("/v1/embeddings", json={"model": "maker/thing", "input": wrong})
        assert (answer.status, (await answer.json())["error"]["param"]) == (400, "input"), wrong
        assert await money(world) == {**UNTOUCHED, "holds": []}, wrong
