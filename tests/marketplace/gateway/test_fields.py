"""What the gateway does with each field is what the list of fields says: nothing is held for what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import aiohttp
import pytest

from marketplace.accounts.errors import Refusal
from marketplace.gateway.background.requests import NewBatch
from marketplace.gateway.json_bodies import shaped
from marketplace.gateway.moderations import parse_moderation_request
from marketplace.gateway.requests import parse_prediction_request
from marketplace.gateway.responses.request import parse_response_request
from protocol.request_fields import FIELDS, WISHES, Body
from tests.marketplace.gateway.conftest import UNTOUCHED, World, money

CHAT = "/v1/chat/completions"
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
    "batches": (
        {"input_file_id": "file-x", "endpoint": "/v1/chat/completions"},
        lambda body: shaped(body, NewBatch, of="batches"),
    ),
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


FILE, CALL = f"file-{'0' * 32}", "0" * 32
OURS: list[tuple[str, dict[str, Any], str, str | None]] = [
    ("/v1/batches", {"input_file_id": FILE, "endpoint": CHAT, "metadat": {}}, "metadat", "metadata"),
    ("/v1/batches/quote", {"input_file": FILE}, "input_file", "input_file_id"),
    ("/v1/batches/quote", {"input_file_id": FILE, "region": "eu"}, "region", None),
    ("/v1/predictions", {"endpoint": CHAT, "body": {}, "webhooks": True}, "webhooks", "webhook"),
    ("/v1/runs", {"max_cost_nano_usd": 5, "max_call": 1}, "max_call", "max_calls"),
    ("/v1/runs", {"max_cost_nano_usd": 5, "deadline": 60}, "deadline", "deadline_s"),
    ("/v1/feedback", {"prediction_id": str(UUID(CALL)), "thumbs": "up"}, "thumbs", "thumb"),
    ("/v1/moderations", {"inputs": "a"}, "inputs", "input"),
    (f"/v1/runs/run_{CALL}/close", {"reason": "x"}, "reason", None),
    (f"/v1/batches/batch_{CALL}/cancel", {"reason": "x"}, "reason", None),
    (f"/v1/predictions/pred_{CALL}/cancel", {"reason": "x"}, "reason", None),
]


@pytest.mark.asyncio(loop_scope="module")
async def test_every_body_beside_predictions_names_a_field_that_it_does_not_take(world: World) -> None:
    for path, body, name, near in OURS:
        async with world.http.post(path, json=body) as answer:
            told = (await answer.json())["error"]
            assert (answer.status, told["param"]) == (400, name), (path, told)
            assert told["code"] == ("unsupported_parameter" if name in WISHES else "unknown_parameter"), path
            assert near is None or f"'{near}'" in told["message"], (path, told)
    for act in ("runs/run_", "batches/batch_", "predictions/pred_"):
        path = f"/v1/{act}{CALL}/{'close' if act.startswith('runs') else 'cancel'}"
        for empty in (b"", b"{}", b" "):
            assert (await world.http.post(path, data=empty)).status == 404, (
                "there is none of this id, and no fault in it"
            )


@pytest.mark.asyncio(loop_scope="module")
async def test_a_forms_inner_names_are_known_ones(world: World) -> None:
    for name, value in (("expires_after[second]", "3600"), ("purpose[x]", "1"), ("expires_after", "3600")):
        form = aiohttp.FormData({"purpose": "batch", name: value})
        form.add_field("file", b"{}\n", filename="rows.jsonl")
        async with world.http.post("/v1/files", data=form) as answer:
            told = (await answer.json())["error"]
            assert (answer.status, told["code"], told["param"]) == (400, "unknown_parameter", name)
