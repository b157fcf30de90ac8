"""Faults of the platform itself while a prediction is in flight: the database, the server's end, the gateway's code."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from billing.hotpath import Charge, HoldRequest, Settlement
from billing.models import Hold
from marketplace.gateway import routes
from marketplace.gateway.writer import Writer
from tests.marketplace.gateway.conftest import FUNDS, UNTOUCHED, World, money, until, until_closed
from tests.marketplace.gateway.test_predictions import COST

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_delivered_while_the_database_is_away_is_charged_later(
    world: World, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle_hold = Writer.settle
    calls = 0

    async def settle(writer: Writer, charge: Charge) -> Settlement:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise psycopg.OperationalError("the database is away")
        return await settle_hold(writer, charge)

    monkeypatch.setattr(Writer, "settle", settle)
    answer = await world.http.post("/v1/chat/completions", json=world.body(stream=stream))
    assert answer.status == 200 and "42" in await answer.text()
    after = await until_closed(world)
    assert after["holds"] == ["settled"] and after["posted"] == FUNDS - COST and after["usage"] == 1


async def test_a_hold_whose_placement_is_not_known_is_free_and_may_be_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    place_hold = Writer.place

    async def place(writer: Writer, request: HoldRequest) -> None:
        await place_hold(writer, request)
        raise psycopg.OperationalError("the connection was lost before the answer")

    monkeypatch.setattr(Writer, "place", place)
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    error = (await answer.json())["error"]
    assert answer.status == 503 and error["code"] == "database" and "x-should-retry" not in answer.headers
    assert await until_closed(world) == UNTOUCHED | {"holds": ["released"]}
    assert world.replica.served == []


async def test_a_fault_of_the_gateway_is_free(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def relay(*_: object) -> None:
        raise ValueError("a mistake")

    monkeypatch.setattr(routes, "relay_whole", relay)
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    assert answer.status == 503 and (await answer.json())["error"]["code"] == "gateway_fault"
    assert await money(world) == UNTOUCHED | {"holds": ["released"]}


async def test_a_server_that_stops_leaves_a_stream_with_its_verdict(world: World) -> None:
    world.replica.mode = "slow"
    body = json.dumps(world.body(stream=True)).encode()
    authorization = f"Bearer {world.key_text}".encode()
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "headers": [(b"authorization", authorization)],
    }
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
    handed_over = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        return await asyncio.Future()

    async def send(message: Any) -> None:
        if b"data: " in message.get("body", b""):
            handed_over.set()

    serving = asyncio.create_task(world.gateway(scope, receive, send))
    await handed_over.wait()
    await asyncio.sleep(0)  # what was sent counts from the loop's next turn on
    await asyncio.sleep(0)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    hold = await sync_to_async(Hold.objects.get)()
    assert (hold.state, hold.delivered_tokens) == ("open", 1)
    assert hold.expires_at <= timezone.now(), "the sweeper may look at it at once"
    await until(sync_to_async(lambda: world.replica.cancelled == {str(hold.id): 1}))
