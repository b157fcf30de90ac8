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
    (CHAT, {"confidence": True}),
    (CHAT, {"confidence": True, "stream": True}),
    (CHAT, {"confidence": True, "use_beam_search": True, "n": 4, "temperature": 0}),
    (CHAT, {"confidence": True, "n": 2, "best_of": 8}),
    (CHAT, {"logit_bias": {"5": 1}}),
    (CHAT, {"logit_bias": {"5": -100, "6": 0.001}, "temperature": 0, "max_tokens": 1}),
    (CHAT, {"presence_penalty": 0.123, "temperature": 0}),
    (CHAT, {"frequency_penalty": -1.0001}),
    (CHAT, {"repetition_penalty": 1.01}),
    (CHAT, {"use_beam_search": True, "n": 2, "temperature": 0, "length_penalty": 0.5}),
    (TEXT, {"prompt": "hi", "confidence": True}),
    (TEXT, {"prompt": "hi", "logit_bias": {"5": 1}}),
    (TEXT, {"prompt": "hi", "echo": True, "confidence": True}),
    (CHAT, {"logprobs": True, "logit_bias": {"5": 1}}),
    (TEXT, {"prompt": "hi", "logprobs": 0}),
    (TEXT, {"prompt": "hi", "logprobs": 5, "stream": True}),
    (TEXT, {"prompt": ["hi", "ho"], "logprobs": 1, "echo": True, "max_tokens": 0}),
    (TEXT, {"prompt": [1, 2], "logprobs": 0, "logit_bias": {"5": 1}}),
]
MISSPELT: list[dict[str, Any]] = [
    {"top_logprobs": 5},
    {"logprobs": False, "top_logprobs": 1},
    {"logprobs": 0},
    {"logprobs": [], "stream": False},
]
ALLOWED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"logprobs": None, "top_logprobs": None}),
    (CHAT, {"logprobs": False, "top_logprobs": 0}),
    (CHAT, {"metadata": {"logprobs": "5"}, "logit_bias": {}, "confidence": False}),
    (CHAT, {"presence_penalty": 0.15, "frequency_penalty": -1.1, "repetition_penalty": 1.05}),
    (CHAT, {"presence_penalty": 0, "frequency_penalty": None, "repetition_penalty": 1}),
    (CHAT, {"n": 2, "best_of": 2}),
    (CHAT, {"use_beam_search": True, "n": 2, "temperature": 0, "length_penalty": -1}),
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


async def test_what_no_reader_takes_for_a_wish_is_refused_by_its_form(world: World) -> None:
    for changes in MISSPELT:
        code, error = await status(world, CHAT, changes)
        assert (code, error["code"]) == (400, "invalid_value") and "logprobs" in error["param"], changes
        assert await money(world) == UNTOUCHED | {"holds": []} and not world.replica.served, changes


async def test_they_are_refused_before_anything_is_held(world: World) -> None:
    for path, changes in REFUSED:
        code, error = await status(world, path, changes)
        assert code == 400 and error["code"] == "logprobs_closed", (path, changes, error)
        assert f"`{error['param']}`" in error["message"] and error["param"] in changes, (path, changes)
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
    everything = {"logprobs": True, "logit_bias": {"5": 1}, "confidence": True, "presence_penalty": 0.123}
    assert await status(world, CHAT, everything) == (200, None)


@pytest.mark.parametrize("word", ["none", "confidence", "open"])
async def test_a_contracts_word_stands(world: World, word: str) -> None:
    def arrange() -> None:
        set_protection(model=world.model, logprobs_open=word != "open", calls_per_day=None, on_copying="")
        world.version.contract = CONTRACT | {"logprobs": word, "output_schema": None}
        world.version.save(update_fields=["contract"])

    await sync_to_async(arrange)()
    for asked, words in (
        ({"logprobs": True}, ("open",)),
        ({"logit_bias": {"5": 1}}, ("open",)),
        ({"repetition_penalty": 1.01}, ("open",)),
        ({"confidence": True}, ("confidence", "open")),
    ):
        code, error = await status(world, CHAT, asked)
        assert code == 200 if word in words else error["code"] == "logprobs_closed", asked


async def test_the_bare_base_stays_open(world: World) -> None:
    await sync_to_async(Model.objects.filter(pk=world.model.pk).update)(kind="base")
    assert await status(world, TEXT, {"prompt": "hi there, everyone", "logprobs": 5, "echo": True}) == (200, None)
