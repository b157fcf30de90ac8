"""A prediction is charged only for what was delivered: answers of any size, hang-ups, lost replicas, retries."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import openai
import psycopg
import pytest
from asgiref.sync import sync_to_async

from billing.hotpath import HoldRequest
from billing.models import Correction, Hold, Incident, Usage
from marketplace.gateway import books
from marketplace.gateway.http import Client
from marketplace.gateway.writer import Writer
from marketplace.vault.models import Replica
from tests.marketplace.gateway.conftest import (
    FUNDS,
    LARGE,
    UNTOUCHED,
    World,
    broken_stream,
    events,
    keep_alive,
    money,
    slow_reader,
    until,
    until_closed,
)
from tests.marketplace.gateway.scripted_replica import ScriptedReplica
from tests.marketplace.gateway.test_predictions import COST

pytestmark = pytest.mark.asyncio(loop_scope="module")

ONE_TOKEN = COST - 4 * 3000
MESSAGES: Any = [{"role": "user", "content": "hi"}]


@contextlib.asynccontextmanager
async def openai_client(world: World, **options: Any) -> Any:
    async with openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key=world.key_text, **options) as client:
        yield client


async def served(world: World) -> bool:
    return bool(world.replica.served)


@sync_to_async
def refunds() -> int:
    return Correction.objects.count()


async def test_a_whole_answer_is_read_to_its_end_however_large_it_is_and_in_how_many_writes(world: World) -> None:
    for padding in (0, 400_000, 3_000_000):
        for world.replica.mode in ("normal", "in_pieces"):
            world.replica.padding = padding
            answer = await world.http.post("/v1/chat/completions", json=world.body())
            assert answer.status == 200
            text = (await answer.json())["choices"][0]["message"]["content"]
            assert text == "The answer is 42." + "x" * padding
    after = await money(world)
    assert after["posted"] == FUNDS - 6 * COST and after["holds"] == ["settled"] * 6


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_the_answer_begins_pays_nothing_and_stops_the_replica(
    world: World, stream: bool
) -> None:
    world.replica.mode = "silent"
    async with openai_client(world, max_retries=0) as client:
        call = asyncio.create_task(
            client.chat.completions.create(model="maker/thing", messages=MESSAGES, max_tokens=8, stream=stream)
        )
        await until(lambda: served(world))
        call.cancel()
    assert await until_closed(world) == UNTOUCHED | {"holds": ["released"]}
    (claims,) = world.replica.served
    await until(sync_to_async(lambda: claims["jti"] in world.replica.cancelled))
    assert world.replica.cancelled == {claims["jti"]: 0}


async def test_timeouts_of_openais_client_and_its_retries_cost_nothing(world: World) -> None:
    world.replica.mode = "silent"
    async with openai_client(world, max_retries=2, timeout=1) as client:
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(model="maker/thing", messages=MESSAGES, max_tokens=8)

    async def over() -> bool:
        # A call whose time was over before its hold was placed left none.
        return not world.server.server_state.tasks and "open" not in (await money(world))["holds"]

    await until(over)
    after = await money(world)
    assert after == UNTOUCHED | {"holds": ["released"] * len(after["holds"])}


async def test_a_client_that_leaves_a_stream_pays_for_the_tokens_it_was_handed(world: World) -> None:
    world.replica.mode = "slow"
    answer = await world.http.post("/v1/chat/completions", json=world.body(stream=True))
    await answer.content.readany()
    answer.close()
    after = await until_closed(world)
    assert after["holds"] == ["settled"] and after["posted"] == FUNDS - ONE_TOKEN
    assert world.replica.cancelled == {world.replica.served[0]["jti"]: 1}
    usage = await sync_to_async(Usage.objects.get)()
    assert (usage.completion_tokens, usage.finish_reason) == (1, "cancelled")


async def test_a_receipt_for_more_than_a_stream_delivered_before_the_hang_up_is_charged_as_delivered(
    world: World,
) -> None:
    world.replica.mode, world.replica.lies = "slow", {"completion_tokens": 8}
    answer = await world.http.post("/v1/chat/completions", json=world.body(stream=True))
    await answer.content.readany()
    answer.close()
    after = await until_closed(world)
    assert after["posted"] == FUNDS - ONE_TOKEN and after["usage"] == 1


async def test_a_charged_answer_that_its_client_did_not_take_is_refunded(world: World) -> None:
    world.replica.padding = LARGE
    async with slow_reader(world.url, world) as http:
        answer = await http.post("/v1/chat/completions", json=world.body())
        assert answer.status == 200 and await refunds() == 0
        assert (await money(world))["posted"] == FUNDS - COST, "it was charged before it was sent"
        answer.close()

    async def refunded() -> bool:
        return await refunds() == 1

    await until(refunded)
    after = await money(world)
    assert after["posted"] == FUNDS and after["held"] == 0 and after["creator"] == 0 and after["sum"] == 0


async def test_openais_client_tries_again_after_a_free_failure_and_pays_once(world: World) -> None:
    world.replica.script = ["drop", "drop_midway", "normal"]
    async with openai_client(world, max_retries=2) as client:
        answer = await client.chat.completions.create(model="maker/thing", messages=MESSAGES, max_tokens=8)
    assert answer.choices[0].message.content == "The answer is 42."
    assert len(world.replica.served) == 3
    after = await money(world)
    assert sorted(after["holds"]) == ["released", "released", "settled"] and after["posted"] == FUNDS - COST
    first, second, _ = (claims["jti"] for claims in world.replica.served)
    await until(sync_to_async(lambda: {first, second} <= set(world.replica.cancelled)))


@pytest.mark.parametrize("mode", ["drop", "drop_midway", "nonsense"])
async def test_an_unknown_outcome_is_not_tried_again_and_becomes_free(
    world: World, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica fails and the database is away: nothing can be promised, so nothing is."""
    world.replica.mode = mode

    async def away(*_: object, **__: object) -> None:
        raise psycopg.OperationalError("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(books, "release_hold", away)
        patched.setattr(books, "record_delivery", away)
        async with openai_client(world, max_retries=2) as client:
            with pytest.raises(openai.InternalServerError) as failure:
                await client.chat.completions.create(model="maker/thing", messages=MESSAGES, max_tokens=8)
    assert failure.value.code == "outcome_unknown" and failure.value.response.headers["x-should-retry"] == "false"
    assert "Nothing was charged" not in failure.value.message
    assert len(world.replica.served) == 1
    assert await until_closed(world) == UNTOUCHED | {"holds": ["released"]}


async def test_a_stream_that_broke_before_its_first_token_is_free(world: World) -> None:
    world.replica.mode = "drop_at_once"
    answer = await world.http.post("/v1/chat/completions", json=world.body(stream=True))
    assert answer.status == 503 and "Nothing was charged" in await answer.text()
    assert await money(world) == UNTOUCHED | {"holds": ["released"]}


async def test_each_replica_that_is_asked_is_an_attempt_of_its_own(world: World) -> None:
    other = ScriptedReplica()
    await other.start()
    row = await sync_to_async(Replica.objects.get)()
    row.pk, row.name, row.url, row.receipt_public_key = other.id, "other", other.url, other.public_key
    await sync_to_async(row.save)(force_insert=True)
    await sync_to_async(keep_alive)()
    world.replica.mode = other.mode = "refuse"
    world.let_pass(1)
    refused = await world.http.post("/v1/chat/completions", json=world.body())
    assert refused.status == 429
    asked = [*world.replica.served, *other.served]
    assert sorted(claims.get("attempt", 1) for claims in asked) == [1, 2] and len({c["jti"] for c in asked}) == 1
    first = other if world.replica.served[0].get("attempt", 1) == 2 else world.replica
    second = other if first is world.replica else world.replica
    second.mode = "normal"
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    assert answer.status == 200
    hold = await sync_to_async(Hold.objects.get)(state="settled")
    assert (hold.attempt, hold.replica_id) == (2, second.id)
    await other.stop()


async def test_a_replica_that_is_lost_before_its_answer_begins_is_replaced_silently_once(world: World) -> None:
    others = [ScriptedReplica(), ScriptedReplica()]
    for number, other in enumerate(others):
        await other.start()
        row = await sync_to_async(Replica.objects.get)(pk=world.replica.id)
        row.pk, row.name, row.url = other.id, f"other {number}", other.url
        row.receipt_public_key = other.public_key
        await sync_to_async(row.save)(force_insert=True)
    await sync_to_async(keep_alive)()
    everyone = [world.replica, *others]
    for one in everyone:
        one.mode = "drop"
    lost = await world.http.post("/v1/chat/completions", json=world.body())
    assert lost.status == 503 and "Nothing was charged" in await lost.text()
    assert sum(len(one.received) > 0 for one in everyone) == 2, "a request that ends replicas does not meet all of them"
    world.let_pass(1)  # replicas are looked up again, whose heartbeats are of the future
    for one in everyone:
        one.mode = "normal"
    first = next(one for one in everyone if any(claims.get("attempt", 1) == 1 for claims in one.served))
    first.script = ["drop"]
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    assert answer.status == 200, await answer.text()
    settled = await sync_to_async(Hold.objects.get)(state="settled")
    assert settled.attempt == 2 and settled.replica_id != first.id
    assert (await money(world))["usage"] == 1
    for other in others:
        await other.stop()


LIES: list[dict[str, Any]] = [
    {"adapter": "ef" * 32},
    {"adapter": None},
    {"base": "cd" * 32},
    {"attempt": 2},
    {"replica_id": "00000000-0000-4000-8000-000000000000"},
    {"jti": "00000000-0000-4000-8000-000000000000"},
    {"completion_tokens": 9},
    {"prompt_tokens": 2**31},
    {"cached_tokens": 11},
    {"completion_tokens": 2**63},
    {"completion_tokens": -1},
]


async def test_a_whole_answer_whose_receipt_is_not_within_its_ticket_is_neither_delivered_nor_charged(
    world: World,
) -> None:
    for world.replica.lies in LIES:
        answer = await world.http.post("/v1/chat/completions", json=world.body())
        assert answer.status == 503, world.replica.lies
        assert "42" not in (await answer.json())["error"]["message"]
    assert await money(world) == UNTOUCHED | {"holds": ["released"] * len(LIES)}
    assert await sync_to_async(Incident.objects.filter(kind="receipt_refused").count)() == len(LIES)


async def test_a_stream_whose_receipt_is_refused_is_free_and_leaves_evidence(world: World) -> None:
    world.replica.lies = {"prompt_tokens": 2**31}
    answer = await world.http.post("/v1/chat/completions", json=world.body(stream=True))
    last = events(await answer.text())[-1]
    assert last["error"]["code"] == "replica_lost" and "Nothing was charged" in last["error"]["message"]
    assert await money(world) == UNTOUCHED | {"holds": ["released"]}
    incident = await sync_to_async(Incident.objects.get)()
    assert incident.kind == "receipt_refused" and incident.detail["rule"] == "prompt_tokens"
    assert incident.detail["receipt"].count(".") == 2


async def test_a_broken_streams_last_event_says_that_its_delivery_is_charged(world: World) -> None:
    last = events(await broken_stream(world))[-1]
    assert last["error"]["code"] == "replica_lost" and "will be charged" in last["error"]["message"]
    assert last["intarsia"]["settled"] is False


async def test_a_client_that_leaves_while_its_hold_is_placed_reaches_no_replica(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    placing, left = asyncio.Event(), asyncio.Event()
    place_hold = Writer.place

    async def slowly(writer: Writer, request: HoldRequest) -> None:
        placing.set()
        await left.wait()
        await place_hold(writer, request)

    gone: list[Client] = []
    watched = Client.__enter__

    def watch(client: Client) -> Client:
        gone.append(client)
        return watched(client)

    monkeypatch.setattr(Writer, "place", slowly)
    monkeypatch.setattr(Client, "__enter__", watch)
    call = asyncio.create_task(world.http.post("/v1/chat/completions", json=world.body()))
    await placing.wait()
    call.cancel()

    async def noticed() -> bool:
        return gone[0].gone

    await until(noticed)
    left.set()
    assert await until_closed(world) == UNTOUCHED | {"holds": ["released"]}
    assert world.replica.served == []
