"""A body that cannot be taken is refused before anything is held, counted or used up; so is a grammar, in the end."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async

from billing.models import Run
from tests.marketplace.gateway.conftest import UNTOUCHED, World, money, until_closed
from tests.marketplace.gateway.test_contracts import message, take_up

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOTHING = UNTOUCHED | {"holds": []}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ROLE = [{"role": "wizard", "content": "x"}]
WRONG: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"temperature": 9}, "temperature"),
    (CHAT, {"top_p": 1.5}, "top_p"),
    (CHAT, {"repetition_penalty": 0}, "repetition_penalty"),
    (CHAT, {"stop": ["x"] * 17}, "stop"),
    (CHAT, {"logit_bias": {"x": 1}}, "logit_bias"),
    (CHAT, {"messages": ROLE}, "messages[0].role"),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    (CHAT, {"tool_choice": "required"}, "tool_choice"),
    (CHAT, {"response_format": {"type": "json_schema"}}, "response_format"),
    (CHAT, {"guided_regex": "a", "guided_grammar": "b"}, "guided_grammar"),
    (CHAT, {"audio": {"voice": "x"}}, "audio"),
    (CHAT, {"use_beam_search": True}, "n"),
    (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (TEXT, {"suffix": "x"}, "suffix"),
    (TEXT, {"prompt": ["a", [1]] * 65}, "prompt"),
    (TEXT, {"prompt": [[]]}, "prompt"),
    ("/v1/embeddings", {"dimensions": 5}, "dimensions"),
    ("/v1/embeddings", {"encoding_format": "hex"}, "encoding_format"),
]


def body_for(world: World, path: str) -> dict[str, Any]:
    if path == CHAT:
        return world.body()
    return {"model": "maker/thing", "prompt" if path == TEXT else "input": "text"} | (
        {} if path != TEXT else {"max_tokens": 4}
    )


async def opened(world: World) -> str:
    async with world.http.post("/v1/runs", json={"max_cost_nano_usd": 10**7, "max_calls": 2}) as made:
        return str((await made.json())["id"])


@pytest.mark.parametrize(("path", "changes", "param"), WRONG, ids=[f"{one[0][4:8]}-{one[2]}" for one in WRONG])
async def test_a_wrong_body_is_refused_before_its_hold(
    world: World, path: str, changes: dict[str, Any], param: str
) -> None:
    headers = {"Idempotency-Key": "one", "X-Intarsia-Run": await opened(world)}
    async with world.http.post(path, json=body_for(world, path) | changes, headers=headers) as answer:
        error = (await answer.json())["error"]
    assert (answer.status, error["param"]) == (400, param), error
    assert await money(world) == NOTHING and world.replica.served == []
    assert (await sync_to_async(Run.objects.get)()).calls == 0


CONTRACTED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"guided_regex": "a"}, "contract_output"),
    ({}, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "contract_output"),
    ({}, {"ignore_eos": True}, "contract_output"),
    ({}, {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, "contract_messages"),
    ({"system": "refuse"}, {"messages": [{"role": "system", "content": "a"}]}, "contract_system"),
    ({}, {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}}, "contract_output"),
]


@pytest.mark.parametrize(("terms", "changes", "code"), CONTRACTED, ids=lambda one: one if isinstance(one, str) else "")
async def test_what_a_contract_rules_out_is_refused_before_the_hold(
    world: World, terms: dict[str, Any], changes: dict[str, Any], code: str
) -> None:
    await take_up(world, **terms)
    async with world.http.post(CHAT, json=message(world, **changes)) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (400, code)
    assert await money(world) == NOTHING and world.replica.served == []


async def test_raw_text_for_a_model_with_a_contract_is_refused_before_the_hold(world: World) -> None:
    await take_up(world)
    async with world.http.post(TEXT, json=body_for(world, TEXT)) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (400, "contract_chat_only")
    assert await money(world) == NOTHING


async def test_what_a_replica_refuses_gives_the_run_its_call_back_and_leaves_the_key_free(world: World) -> None:
    run = await opened(world)
    for number in range(3):  # more than the run has calls
        world.replica.script = ["bad_grammar"]
        headers = {"Idempotency-Key": "one", "X-Intarsia-Run": run}
        body = world.body(guided_regex="(" * (number + 1))
        async with world.http.post(CHAT, json=body, headers=headers) as answer:
            assert answer.status == 400, await answer.text()
    assert (await sync_to_async(Run.objects.get)()).calls == 0
    headers = {"Idempotency-Key": "one", "X-Intarsia-Run": run}
    async with world.http.post(CHAT, json=world.body(), headers=headers) as answer:
        assert answer.status == 200, await answer.text()
    assert (await until_closed(world))["usage"] == 1 and (await sync_to_async(Run.objects.get)()).calls == 1


async def test_a_field_of_chats_is_unknown_in_a_completion_and_in_its_quote(world: World) -> None:
    body = body_for(world, TEXT) | {"max_tokens": 8, "max_completion_tokens": 2}
    for path in (TEXT, "/v1/quote"):
        async with world.http.post(path, json=body) as answer:
            error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (400, "unknown_parameter")
        assert error["param"] == "max_completion_tokens" and "max_tokens" in error["message"]
    assert await money(world) == UNTOUCHED | {"holds": []} and not world.replica.served
