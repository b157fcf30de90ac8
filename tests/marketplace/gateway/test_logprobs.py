"""Log-probabilities of an adapter: refused in every spelling, on every path, unless the creator opened them."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async

from marketplace.catalog.models import Model
from marketplace.protection.services import set_protection
from tests.marketplace.gateway.conftest import UNTOUCHED, World, money
from tests.marketplace.gateway.test_contracts import CONTRACT

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
REFUSED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"logprobs": True}),
    (CHAT, {"logprobs": True, "stream": True}),
    (CHAT, {"logprobs": True, "top_logprobs": 0}),
    (CHAT, {"top_logprobs": 5}),
    (CHAT, {"logprobs": False, "top_logprobs": 1}),
    (CHAT, {"logprobs": 0}),
    (CHAT, {"logprobs": [], "stream": False}),
    (CHAT, {"logprobs": True, "logit_bias": {"5": 1}}),
    (TEXT, {"prompt": "hi", "logprobs": 0}),
    (TEXT, {"prompt": "hi", "logprobs": 5, "stream": True}),
    (TEXT, {"prompt": ["hi", "ho"], "logprobs": 1, "echo": True, "max_tokens": 0}),
    (TEXT, {"prompt": [1, 2], "logprobs": 0, "logit_bias": {"5": 1}}),
]
ALLOWED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"logprobs": None, "top_logprobs": None}),
    (CHAT, {"logprobs": False, "top_logprobs": 0}),
    (CHAT, {"metadata": {"logprobs": "5"}, "logit_bias": {"5": 1}}),
    (CHAT, {"messages": [{"role": "user", "content": '"logprobs": true'}]}),
    (TEXT, {"prompt": "hi there, everyone", "logprobs": None, "echo": True}),
]


async def status(world: World, path: str, changes: dict[str, Any]) -> tuple[int, Any]:
    body = world.body(**changes)
    if path == TEXT and "messages" not in changes:
        del body["messages"]
    async with world.http.post(path, json=body) as answer:
        if answer.status == 200:
            await answer.read()
            return 200, None
        return answer.status, (await answer.json())["error"]


async def test_they_are_refused_before_anything_is_held(world: World) -> None:
    for path, changes in REFUSED:
        code, error = await status(world, path, changes)
        assert code == 400 and error["code"] == "logprobs_closed", (path, changes, error)
        assert "tells no log-probabilities" in error["message"], (path, changes)
        for name in {"echo", "logit_bias"} & changes.keys():
            assert f"`{name}`" in error["message"], (path, changes)
        assert await money(world) == UNTOUCHED | {"holds": []} and not world.replica.served, (path, changes)


async def test_the_last_of_repeated_fields_counts_and_escapes_hide_nothing(world: World) -> None:
    for raw in ('"logprobs": false, "logprobs": true', '"log\\u0070robs": true'):
        body = '{"model": "maker/thing", "messages": [{"role": "user", "content": "hi"}], ' + raw + "}"
        async with world.http.post(CHAT, data=body.encode()) as answer:
            assert (await answer.json())["error"]["code"] == "logprobs_closed"
    async with world.http.post("/v1/quote", json=world.body(logprobs=True)) as answer:
        assert (await answer.json())["error"]["code"] == "logprobs_closed", "a quote of what would be refused"
    assert not world.replica.served


async def test_a_request_that_asks_for_none_is_answered(world: World) -> None:
    for path, changes in ALLOWED:
        assert await status(world, path, changes) == (200, None), (path, changes)


async def test_the_creator_opens_them_for_versions_without_a_contract(world: World) -> None:
    await sync_to_async(set_protection)(model=world.model, logprobs_open=True, calls_per_day=None, on_copying="")
    assert await status(world, CHAT, {"logprobs": True, "logit_bias": {"5": 1}}) == (200, None)


@pytest.mark.parametrize("word", ["none", "open"])
async def test_a_contracts_word_stands(world: World, word: str) -> None:
    def arrange() -> None:
        set_protection(model=world.model, logprobs_open=word == "none", calls_per_day=None, on_copying="")
        world.version.contract = CONTRACT | {"logprobs": word, "output_schema": None}
        world.version.save(update_fields=["contract"])

    await sync_to_async(arrange)()
    code, error = await status(world, CHAT, {"logprobs": True})
    assert code == 200 if word == "open" else error["code"] == "logprobs_closed"


async def test_the_bare_base_stays_open(world: World) -> None:
    await sync_to_async(Model.objects.filter(pk=world.model.pk).update)(kind="base")
    assert await status(world, TEXT, {"prompt": "hi there, everyone", "logprobs": 5, "echo": True}) == (200, None)
