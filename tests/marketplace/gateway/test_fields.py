"""What the gateway does with each field is what the list of fields says: nothing is held for what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from marketplace.accounts.errors import Refusal
from marketplace.gateway.background.requests import read_batch
from marketplace.gateway.moderations import parse_moderation_request
from marketplace.gateway.requests import parse_prediction_request
from marketplace.gateway.responses.request import parse_response_request
from protocol.request_fields import FIELDS, WISHES, Body
from tests.marketplace.gateway.conftest import UNTOUCHED, World, money


MESSAGES = [{"role": "user", "content": "hi"}]
READERS: dict[Body, tuple[dict[str, Any], Callable[[bytes], Any]]] = {
    "chat": ({"model": "a/b", "messages": MESSAGES}, lambda body: parse_prediction_request(body, {}, chat=True)),
    "completions": ({"model": "a/b", "prompt": "hi"}, lambda body: parse_prediction_request(body, {}, chat=False)),
    "embeddings": (
        {"model": "a/b", "input": "hi"},
        lambda body: parse_prediction_request(body, {}, chat=False, embedding=True),
    ),
    "responses": ({"model": "a/b", "input": "hi"}, lambda body: parse_response_request(body).chat_body()),
    "moderations": ({"model": "a/b", "input": "hi"}, parse_moderation_request),
    "batches": ({"input_file_id": "file-x", "endpoint": "/v1/chat/completions"}, read_batch),
}


@pytest.mark.parametrize("kind", READERS)
def test_ignored_fields_change_nothing(kind: Body) -> None:
    body, read = READERS[kind]
    plain = read(json.dumps(body).encode())
    for name, use in FIELDS[kind].items():
        for value in ("a", {"a": 1}, True) if use == "ignored" else ():
            assert read(json.dumps(body | {name: value}).encode()) == plain, name


@pytest.mark.parametrize("kind", READERS)
def test_refused_and_unknown_fields_are_named(kind: Body) -> None:
    body, read = READERS[kind]
    refused = [(name, "unsupported_parameter") for name, use in FIELDS[kind].items() if use == "refused"]
    refused += [(name, "unsupported_parameter") for name in sorted(WISHES)]
    for name, code in (*refused, ("temprature", "unknown_parameter"), ("é", "unknown_parameter")):
        with pytest.raises(Refusal) as told:
            read(json.dumps(body | {name: {"a": 1}}).encode())
        assert (told.value.status, told.value.field, told.value.code) == (400, name, code)
        assert f"'{name}'" in told.value.message


@pytest.mark.asyncio(loop_scope="module")
async def test_agents_own_fields_are_taken_and_wishes_are_refused_before_a_hold(world: World) -> None:
    beside = {"client_metadata": {"session": "1"}, "prompt_cache_key": "k", "store": False, "metadata": {"a": "b"}}
    forms: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 8},
        "/v1/responses": {"input": "hi", "max_output_tokens": 8},
    }
    for path, body in forms.items():
        for name in ("provider", "models", "route", "data", "region", "temprature"):
            async with world.http.post(path, json={"model": "maker/thing", **body, name: ["x"]}) as answer:
                assert (answer.status, (await answer.json())["error"]["param"]) == (400, name)
    assert await money(world) == UNTOUCHED | {"holds": []} and not world.replica.received
    for path, body in forms.items():
        async with world.http.post(path, json={"model": "maker/thing", **body, **beside}) as answer:
            assert answer.status == 200, await answer.text()
    assert (await money(world))["usage"] == 2


@pytest.mark.asyncio(loop_scope="module")
async def test_the_path_says_what_a_body_is_and_not_a_word_in_it(world: World) -> None:
    """A completion that names the field of a chat would be read as one by the gateway, and not by a replica."""
    body = {"model": "maker/thing", "prompt": "hi there, everyone", "max_tokens": 8}
    async with world.http.post("/v1/completions", json=body | {"messages": MESSAGES}) as answer:
        assert (answer.status, (await answer.json())["error"]["param"]) == (400, "messages")
    assert await money(world) == UNTOUCHED | {"holds": []}
    schema = {"type": "json_schema", "json_schema": {"schema": {"properties": {"messages": {"type": "array"}}}}}
    async with world.http.post("/v1/completions", json=body | {"response_format": schema}) as answer:
        assert answer.status == 200, await answer.text()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_form_with_an_unknown_field_is_refused(world: World) -> None:
    for name, code in (("region", "unsupported_parameter"), ("purposes", "unknown_parameter")):
        form = aiohttp.FormData({"purpose": "batch", name: "x"})
        form.add_field("file", b"{}\n", filename="rows.jsonl")
        async with world.http.post("/v1/files", data=form) as answer:
            told = (await answer.json())["error"]
            assert (answer.status, told["code"], told["param"]) == (400, code, name)
