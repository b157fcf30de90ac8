"""Requests made from the description of `/v1`: right ones and wrong ones, to every operation, over the network."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import openai
import pytest
import requests
from aiohttp import web
from asgiref.sync import sync_to_async
from schemathesis import Case

from billing.lots import deposit
from billing.models import Account, LedgerTransaction, Lot
from marketplace.accounts.services import create_api_key
from marketplace.api.description import description
from marketplace.api.predictions import OPERATIONS
from protocol.errors import RequestRefused
from protocol.requests.bodies import ChatBody, CompletionBody, EmbeddingBody
from protocol.requests.parsing import parse
from tests.eighths import Pick, picked
from tests.marketplace.fuzz.cases import operations_of, problems_of, put_known
from tests.marketplace.gateway.scripted_replica import ScriptedReplica
from tests.marketplace.jobs.conftest import (
    CHAT,
    World,
    _own_database_url,
    api,
    calling,
    client,
    lines,
    shared_gateway,
    world,
)

__all__ = ["_own_database_url", "api", "calling", "client", "shared_gateway", "world"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.asyncio(loop_scope="module")]

IDS = ("response_id", "run_id", "file_id", "batch_id", "prediction_id")
BODIES = {CHAT: ChatBody, "/v1/completions": CompletionBody, "/v1/embeddings": EmbeddingBody}


@pytest.fixture(autouse=True)
def _no_rate(settings: Any, _own_database_url: None) -> None:
    settings.ENV = dataclasses.replace(settings.ENV, rate_limit=100_000)


@pytest.fixture(autouse=True)
def _replica_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the replica refuse the bodies that a real one refuses, by the real one's parser."""
    answer = ScriptedReplica._answer

    async def read_first(
        self: ScriptedReplica, request: web.Request, mode: str, body: dict[str, Any], claims: dict[str, Any]
    ) -> web.StreamResponse:
        try:
            parse(json.dumps(body).encode(), BODIES[request.path])
        except RequestRefused as refused:
            error = {"message": refused.message, "type": "invalid_request_error", "param": refused.param}
            return web.json_response({"error": error | {"code": refused.code}}, status=refused.status)
        return await answer(self, request, mode, body, claims)

    monkeypatch.setattr(ScriptedReplica, "_answer", read_first)


class Things:
    """The things that exist below `/v1`: the one of a path anew for each operation, some of which end it."""

    def __init__(self, world: World, client: openai.OpenAI) -> None:
        self._world, self._client = world, client
        self._always = {"org": "maker", "slug": "thing", "model": "maker/thing", "endpoint": CHAT}
        self._always["input_file_id"] = self._new("file_id")
        paths = [(operation.method.upper(), operation.path) for operation in OPERATIONS]
        # Before the first request: those may open as many batches and runs as an organization can have.
        self._of = {
            f"{method} {path}": self._always | {name: self._new(name) for name in IDS if f"{{{name}}}" in path}
            for method, path in paths
        }

    def known(self, label: str) -> dict[str, Any]:
        """The ids by the names of parameters and fields."""
        return self._of[label]

    def _new(self, name: str) -> str:
        ask, body = self._client, self._world.body()
        if name == "file_id":
            return ask.files.create(file=("rows.jsonl", lines(self._world, 1)), purpose="batch").id
        if name == "batch_id":
            file = self._always["input_file_id"]
            return ask.batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h").id
        path, sent = {
            "response_id": ("/responses", {"model": body["model"], "input": "hi"}),
            "prediction_id": ("/predictions", {"endpoint": CHAT, "body": body}),
            "run_id": ("/runs", {"max_cost_nano_usd": 10**9}),
        }[name]
        answer: dict[str, Any] = ask.post(path, cast_to=dict, body=sent)  # type: ignore[arg-type]
        return str(answer["id"])


@picked
async def test_every_operation_answers_as_it_is_described(api: World, client: openai.OpenAI, pick: Pick) -> None:
    await sync_to_async(deposit)(
        organization=api.consumer,
        amount_nano_usd=10**12,
        source=Account.Kind.STRIPE_CASH,
        lot_kind=Lot.Kind.PAID,
        kind=LedgerTransaction.Kind.TOP_UP,
        reference="fuzz",
    )
    headers = {"Authorization": f"Bearer {api.key_text}"}
    things = await asyncio.to_thread(Things, api, client)

    def send(case: Case) -> None:
        put_known(case, things.known(case.operation.label))
        answer = case.call_and_validate(base_url=api.url, session=session, headers=headers)
        known = answer.status_code not in (401, 405)  # the caller
        assert not known or "ratelimit-reset" in answer.headers, (case.operation.label, answer.status_code)

    operations = operations_of(description(), "/v1/")
    with requests.Session() as session:
        problems = await asyncio.to_thread(lambda: list(problems_of(pick(operations), send)))
    assert not problems, "\n\n".join(problems)


async def test_a_key_reads_what_its_scope_is_said_to_open(api: World) -> None:
    _, text = await sync_to_async(create_api_key)(
        organization=api.consumer, name="reader", scopes=["read"], created_by=None
    )
    for operation in OPERATIONS:
        path = operation.path.format(**dict.fromkeys(("org", "slug"), "x"), **dict.fromkeys(IDS, "x"))
        answer = await api.http.request(operation.method, path, headers={"authorization": f"Bearer {text}"})
        refused = answer.status == 403 and (await answer.json())["error"]["code"] == "scope_missing"
        assert refused == ("read" not in operation.scopes), operation.id
