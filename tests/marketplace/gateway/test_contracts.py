"""A version's contract at the gateway: a larger hold for its instructions, its own limit, and whole answers or none."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async

from billing.hotpath import Charge, Settlement
from billing.models import Hold, Incident
from marketplace.gateway.bounds import chat_bound
from marketplace.gateway.requests import DEFAULT_MAX_TOKENS
from marketplace.gateway.writer import Writer
from tests.marketplace.gateway.conftest import UNTOUCHED, World, broken_stream, events, until_closed

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
CONTRACT = {
    "instruction_tokens": 100,
    "max_tokens": 24,
    "output_schema": SCHEMA,
    "messages": "single",
    "system": "replace",
    "logprobs": "none",
}
WHOLE, HALF = ["{", '"a"', ":1", "}"], ["{", '"a"', ":"]
FREE = UNTOUCHED | {"holds": ["released"]}


@sync_to_async
def take_up(world: World, **changes: Any) -> None:
    world.version.contract = CONTRACT | changes
    world.version.save(update_fields=["contract"])


def message(world: World, **changes: Any) -> dict[str, Any]:
    """The body of a caller who sends the message alone."""
    body = world.body(**changes)
    if "max_tokens" not in changes:
        del body["max_tokens"]
    return body


async def hold_of(world: World, body: dict[str, Any]) -> Hold:
    async with world.http.post("/v1/chat/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
    return await sync_to_async(Hold.objects.latest)("created_at")


async def test_the_hold_is_for_the_instructions_and_the_contracts_own_limit(world: World) -> None:
    world.replica.texts = WHOLE
    bound = chat_bound(world.body())
    plain = await hold_of(world, message(world))
    assert (plain.max_prompt_tokens, plain.max_tokens) == (bound, DEFAULT_MAX_TOKENS)
    await take_up(world)
    world.let_pass(1)
    held = await hold_of(world, message(world))
    assert (held.max_prompt_tokens, held.max_tokens) == (bound + 100, 24)
    ticket = world.replica.served[-1]
    assert (ticket["max_prompt_tokens"], ticket["max_tokens"]) == (bound + 100, 24)
    more = await hold_of(world, message(world, max_tokens=40))
    assert more.max_tokens == 40
    quote = await (await world.http.post("/v1/quote", json=message(world))).json()
    assert quote["worst_case_nano_usd"] == held.amount_nano_usd < plain.amount_nano_usd


@pytest.mark.parametrize("stream", [False, True])
async def test_a_whole_answer_is_charged(world: World, stream: bool) -> None:
    await take_up(world)
    world.replica.texts, world.replica.finish = WHOLE, "stop"
    async with world.http.post("/v1/chat/completions", json=message(world, stream=stream)) as answer:
        assert "cut_off" not in await answer.text()
    assert (await until_closed(world))["usage"] == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_its_own_limit_cut_off_is_free_and_says_so(world: World, stream: bool) -> None:
    await take_up(world)
    world.replica.texts, world.replica.finish = HALF, "length"
    world.replica.lies = {"completion_tokens": 0, "finish_reason": "length"}  # what an honest replica counts
    body = message(world, stream=stream)
    if stream:
        body["stream_options"] = {"include_usage": True}
    async with world.http.post("/v1/chat/completions", json=body) as answer:
        text = await answer.text()
    last = events(text)[-1] if stream else json.loads(text)
    assert last["usage"]["cost_nano_usd"] == 0 and last["intarsia"]["cut_off"] is True
    assert await until_closed(world) == FREE
    assert not await sync_to_async(Incident.objects.exists)()


async def test_half_an_answer_is_free_also_when_the_database_was_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await take_up(world)
    world.replica.texts, world.replica.finish = HALF, "length"
    world.replica.lies = {"completion_tokens": 0, "finish_reason": "length"}
    settle_hold, calls = Writer.settle, 0

    async def settle(writer: Writer, charge: Charge) -> Settlement:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise psycopg.OperationalError("the database is away")
        return await settle_hold(writer, charge)

    monkeypatch.setattr(Writer, "settle", settle)
    async with world.http.post("/v1/chat/completions", json=message(world)) as answer:
        assert (await answer.json())["intarsia"]["settled"] is False
    assert await until_closed(world) == FREE and calls == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("finish", ["length", "stop"])
async def test_a_replica_that_charges_for_half_an_answer_is_not_believed(
    world: World, stream: bool, finish: str
) -> None:
    await take_up(world)
    world.replica.texts, world.replica.finish = HALF, finish
    world.replica.lies = {"completion_tokens": 3, "finish_reason": finish}
    async with world.http.post("/v1/chat/completions", json=message(world, stream=stream)) as answer:
        assert "othing was charged" in await answer.text()
    assert await until_closed(world) == FREE
    incident = await sync_to_async(Incident.objects.get)()
    assert incident.detail["rule"] == "completion_tokens" and incident.detail["receipt"]


@pytest.mark.parametrize("steer", [{"max_tokens": 3}, {"stop": ["}"]}, {"logit_bias": {"5": -100}}])
async def test_a_caller_who_cuts_the_answer_himself_pays_for_it(world: World, steer: dict[str, Any]) -> None:
    await take_up(world, logprobs="open")
    world.replica.texts, world.replica.finish = HALF, "length"
    world.replica.lies = {"completion_tokens": 3, "finish_reason": "length"}
    async with world.http.post("/v1/chat/completions", json=message(world, **steer)) as answer:
        assert (await answer.json())["usage"]["cost_nano_usd"] > 0
    assert (await until_closed(world))["usage"] == 1


async def test_an_answer_in_free_text_is_charged_at_its_limit(world: World) -> None:
    await take_up(world, output_schema=None)
    world.replica.texts, world.replica.finish = HALF, "length"
    world.replica.lies = {"completion_tokens": 3, "finish_reason": "length"}
    async with world.http.post("/v1/chat/completions", json=message(world)) as answer:
        assert (await answer.json())["usage"]["cost_nano_usd"] > 0


async def test_half_an_answer_of_a_replica_that_was_lost_is_free(world: World) -> None:
    await take_up(world, max_tokens=8)
    assert "Nothing was charged" in await broken_stream(world)
    assert await until_closed(world) == FREE
