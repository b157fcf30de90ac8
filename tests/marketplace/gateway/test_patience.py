"""A replica that is silent is given up: another one takes over before the first token, and later its caller is told.

Waiting is not silence: a replica that gives signs of life is waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from asgiref.sync import sync_to_async

from billing.models import Hold, Usage
from marketplace.gateway import patience
from marketplace.vault.models import Replica
from tests.marketplace.gateway.conftest import UNTOUCHED, World, events, keep_alive, money, until, until_closed
from tests.marketplace.gateway.scripted_replica import ScriptedReplica

pytestmark = pytest.mark.asyncio(loop_scope="module")
SHORT = 0.3


@pytest_asyncio.fixture(loop_scope="module")
async def other(world: World) -> AsyncIterator[ScriptedReplica]:
    """Another replica of the same base, which answers."""
    replica = ScriptedReplica()
    await replica.start()
    row = await sync_to_async(Replica.objects.get)()
    row.pk, row.name, row.url, row.receipt_public_key = replica.id, "other", replica.url, replica.public_key
    await sync_to_async(row.save)(force_insert=True)
    await sync_to_async(keep_alive)()
    yield replica
    await replica.stop()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_BYTE_SECONDS", SHORT)
    monkeypatch.setattr(patience, "SILENT_SECONDS", SHORT)


# A whole answer that gives signs of life may be computed all the while: it has its deadline alone.
@pytest.mark.parametrize(("mode", "stream"), [("silent", False), ("silent", True), ("waits", True)])
async def test_another_replica_takes_over_from_one_that_does_not_begin(
    world: World, other: ScriptedReplica, short: None, monkeypatch: pytest.MonkeyPatch, stream: bool, mode: str
) -> None:
    """One that is frozen sends no byte; the engine of the other stands still, and its front gives signs of life."""
    monkeypatch.setitem(patience.BEGIN_SECONDS, "standard", SHORT)
    monkeypatch.setattr(patience, "SLOWEST_PREFILL", 1e9)
    everyone = [world.replica, other]
    for one in everyone:
        one.script = [mode]
    asking = asyncio.create_task(world.http.post("/v1/chat/completions", json=world.body(stream=stream)))
    await until(lambda: _any_received(everyone))
    first = next(one for one in everyone if one.received)
    second = other if first is world.replica else world.replica
    second.script = []
    answer = await asking
    assert answer.status == 200 and "42" in await answer.text()
    hold = await sync_to_async(Hold.objects.get)()
    assert (hold.state, hold.attempt, hold.replica_id) == ("settled", 2, second.id)
    await until(lambda: _cancelled(first, str(hold.id)))
    assert (await money(world))["usage"] == 1


async def test_another_replica_takes_over_from_one_that_is_lost_before_its_first_token(
    world: World, other: ScriptedReplica
) -> None:
    """Its first event names the role alone: the client is told nothing of it."""
    everyone = [world.replica, other]
    for one in everyone:
        one.script = ["drop_after_role"]
    asking = asyncio.create_task(world.http.post("/v1/chat/completions", json=world.body(stream=True)))
    await until(lambda: _any_received(everyone))
    second = other if world.replica.received else world.replica
    second.script = ["role_first"]
    answer = await asking
    told = events(await answer.text())
    assert answer.status == 200 and told[-1].get("error") is None
    said = [choice["delta"] for event in told for choice in event.get("choices", [])]
    assert [one for one in said if "role" in one] == [{"role": "assistant", "content": ""}]
    assert "".join(one.get("content") or "" for one in said) == "The answer is 42."
    assert (await money(world))["usage"] == 1 and (await until_closed(world))["holds"] == ["settled"]


async def test_a_stream_that_has_begun_without_a_token_is_given_the_time_of_a_silence(
    world: World, other: ScriptedReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(patience.BEGIN_SECONDS, "standard", SHORT)
    monkeypatch.setattr(patience, "SLOWEST_PREFILL", 1e9)
    for one in (world.replica, other):
        one.mode = "role_first"
    answer = await world.http.post("/v1/chat/completions", json=world.body(stream=True))
    assert answer.status == 200 and "42" in await answer.text()
    assert len(world.replica.served) + len(other.served) == 1


async def _any_received(replicas: list[ScriptedReplica]) -> bool:
    return any(one.received for one in replicas)


async def _alive_for(replica: ScriptedReplica, until: float) -> bool:
    return replica.sign_of_life > until


async def _cancelled(replica: ScriptedReplica, prediction_id: str) -> bool:
    return prediction_id in replica.cancelled


@pytest.mark.parametrize("stream", [False, True])
async def test_waiting_is_not_silence(world: World, short: None, stream: bool) -> None:
    world.replica.mode = "waits"
    asking = asyncio.create_task(world.http.post("/v1/chat/completions", json=world.body(stream=stream)))
    began = time.monotonic()
    await until(lambda: _alive_for(world.replica, began + 3 * SHORT))
    assert not asking.done()
    world.replica.lives_on.set()
    answer = await asking
    text = await answer.text()
    assert answer.status == 200 and "The" in text and "waiting" not in text
    assert (await until_closed(world))["holds"] == ["settled"] and len(world.replica.served) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_after_signs_of_life_is_the_callers_refusal(world: World, stream: bool) -> None:
    world.replica.mode = "late_refusal"
    world.replica.lives_on.set()
    answer = await world.http.post("/v1/chat/completions", json=world.body(stream=stream))
    assert (answer.status, answer.headers["retry-after"]) == (429, "3")
    assert (await answer.json())["error"]["code"] == "queue_full"
    assert await money(world) == UNTOUCHED | {"holds": ["released"]}


async def test_a_stream_that_falls_silent_is_charged_by_its_checkpoint_and_its_caller_told(
    world: World, other: ScriptedReplica, short: None
) -> None:
    for one in (world.replica, other):
        one.mode, one.checkpoints = "freezes", 2
    answer = await world.http.post("/v1/chat/completions", json=world.body(stream=True))
    last = events(await answer.text())[-1]
    assert last["error"]["code"] == "replica_lost" and "was charged" in last["error"]["message"]
    assert (await until_closed(world))["holds"] == ["settled"]
    usage = await sync_to_async(Usage.objects.get)()
    assert (usage.completion_tokens, usage.finish_reason) == (2, "interrupted")


async def test_the_last_replica_has_the_patience_of_a_silence(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_BYTE_SECONDS", 0.05)
    monkeypatch.setattr(patience, "SILENT_SECONDS", 0.5)
    world.replica.mode = "silent"
    began = time.monotonic()
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    assert time.monotonic() - began > 0.5, "no other replica could take over"
    assert answer.status == 503 and "Nothing was charged" in await answer.text()
    assert await until_closed(world) == UNTOUCHED | {"holds": ["released"]}


async def test_a_replica_whose_clock_refuses_every_ticket_is_passed_over(world: World, other: ScriptedReplica) -> None:
    everyone = [world.replica, other]
    for one in everyone:
        one.script = ["no_such_ticket"]
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    assert answer.status == 502, "both refused"
    assert await money(world) == UNTOUCHED | {"holds": ["released"]}
    assert [len(one.served) for one in everyone] == [1, 1]
    world.let_pass(1)  # replicas are looked up again, whose heartbeats are of the future
    world.replica.mode = "no_such_ticket"
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    assert answer.status == 200 and "42" in await answer.text()
    assert len(other.served) == 2
