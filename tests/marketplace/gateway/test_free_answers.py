"""What is free because it is cut off: never what the payer could bring about, nor what already holds the answer."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async

from billing.models import Incident
from tests.marketplace.gateway.conftest import World, until_closed
from tests.marketplace.gateway.test_contracts import FREE, HALF, SCHEMA, message, take_up

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENDLESS = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}, "why": {"type": "string"}},
    "required": ["a", "why"],
    "additionalProperties": False,
}
STEERING: list[dict[str, Any]] = [
    {"repetition_penalty": 0.2},
    {"temperature": 0},
    {"top_p": 1},
    {"top_k": 1},
    {"min_p": 0.5},
    {"seed": 1},
    {"presence_penalty": 2},
    {"frequency_penalty": -2},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"minProperties": 1}}}},
    {"response_format": {"type": "json_object"}},
    {"max_completion_tokens": 5},
    {"max_tokens": 25},
    {"max_tokens": 200},
    {"speculation": False},
    {"confidence": True},
]


def cut(world: World, texts: list[str]) -> None:
    """Let the replica end at its limit, and count what it generated."""
    world.replica.texts, world.replica.finish = texts, "length"
    world.replica.lies = {"completion_tokens": len(texts), "finish_reason": "length"}


@pytest.mark.parametrize("steering", STEERING, ids=lambda one: "-".join(one))
async def test_whoever_sets_anything_that_influences_the_end_pays_for_half_an_answer(
    world: World, steering: dict[str, Any]
) -> None:
    await take_up(world, logprobs="open")
    cut(world, HALF)
    async with world.http.post("/v1/chat/completions", json=message(world, **steering)) as answer:
        found = await answer.json()
        assert answer.status == 200, found
    assert found["usage"]["cost_nano_usd"] > 0 and "cut_off" not in found["intarsia"]
    assert (await until_closed(world))["usage"] == 1 and not await sync_to_async(Incident.objects.exists)()


async def test_sixteen_answers_at_once_are_paid_for(world: World) -> None:
    await take_up(world)
    cut(world, HALF)
    async with world.http.post("/v1/chat/completions", json=message(world, n=16)) as answer:
        assert (await answer.json())["usage"]["cost_nano_usd"] > 0


@pytest.mark.parametrize(
    "plain",
    [{"n": 1}, {"temperature": None}, {"max_tokens": 24}, {"user": "u"}, {"metadata": {"a": "b"}}, {"store": True}],
)
async def test_fields_that_influence_nothing_leave_half_an_answer_free(world: World, plain: dict[str, Any]) -> None:
    await take_up(world)
    world.replica.texts, world.replica.finish = HALF, "length"
    world.replica.lies = {"completion_tokens": 0, "finish_reason": "length"}
    async with world.http.post("/v1/chat/completions", json=message(world, **plain)) as answer:
        assert (await answer.json())["intarsia"]["cut_off"] is True
    assert await until_closed(world) == FREE


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        (SCHEMA, ["{", '"a"', ":1", "\n", "\n", "\n"]),
        (ENDLESS, ['{"a":', '"x"', ',"why":"', "be", "cause"]),
        ({"type": "object"}, ['{"n":', "1" * 4_400, "}"]),
        ({"type": "object"}, ['{"s":"', "\\ud800", '"}']),
        ({"type": "object"}, ['{"f":', "1e999", "}"]),
    ],
    ids=["white-space", "reason", "long-integer", "lone-surrogate", "large-number"],
)
async def test_what_holds_the_answer_is_charged_though_its_end_is_missing(
    world: World, stream: bool, schema: dict[str, Any], texts: list[str]
) -> None:
    await take_up(world, output_schema=schema)
    cut(world, texts)
    async with world.http.post("/v1/chat/completions", json=message(world, stream=stream)) as answer:
        assert answer.status == 200 and "cut_off" not in await answer.text()
    assert (await until_closed(world))["usage"] == 1 and not await sync_to_async(Incident.objects.exists)()


async def test_whoever_sets_a_runs_deadline_pays_for_what_it_cuts_off(world: World) -> None:
    await take_up(world)
    cut(world, HALF)
    terms = {"max_cost_nano_usd": 10**9, "deadline_s": 100}
    async with world.http.post("/v1/runs", json=terms) as made:
        run = await made.json()
    headers = {"X-Intarsia-Run": run["id"]}
    async with world.http.post("/v1/chat/completions", json=message(world), headers=headers) as answer:
        assert (await answer.json())["usage"]["cost_nano_usd"] > 0
