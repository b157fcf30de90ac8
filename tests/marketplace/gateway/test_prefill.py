"""A prompt that one replica computes and another answers: who is asked for what, and what is charged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from asgiref.sync import sync_to_async
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from marketplace.vault import keys
from marketplace.vault.models import Replica
from protocol.encoding import encode_base64url
from protocol.pulls import PullTicket, read_pull_ticket
from tests.marketplace.gateway.conftest import FINGERPRINT, FUNDS, World, events, keep_alive, money
from tests.marketplace.gateway.scripted_replica import ScriptedReplica
from tests.marketplace.gateway.test_predictions import COST

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = [{"role": "user", "content": "long " * 2000}]
# A busy replica whose prompts take a second per 1,000 tokens.
BUSY = {"seats": 8, "running": 6, "prefill_seconds": 1.0, "kv_token_bytes": 20_000}
URL = "https://127.0.0.1:9"


@pytest_asyncio.fixture(loop_scope="module")
async def prompts(world: World) -> AsyncIterator[ScriptedReplica]:
    """A replica that computes prompts for the world's own, which only answers."""
    replica = ScriptedReplica()
    await replica.start()

    def enrol() -> None:
        Replica.objects.update(role="decode", stats=BUSY)
        Replica.objects.create(
            id=replica.id,
            name="prompts",
            url=replica.url,
            base_fingerprint=FINGERPRINT,
            hpke_public_key=b"\0" * 32,
            receipt_public_key=replica.public_key,
            session_digest=b"\1" * 32,
            role="prefill",
            transfer_url=URL,
            stats={"seats": 8, "prefill_seconds": 1.0},
        )
        keep_alive()

    await sync_to_async(enrol)()
    yield replica
    await replica.stop()


async def ask(world: World, **changes: object) -> dict[str, Any]:
    answer = await world.http.post("/v1/chat/completions", json=world.body(**{"messages": LONG, **changes}))
    assert answer.status == 200
    data: dict[str, Any] = await answer.json()
    return data


async def pull_of(world: World) -> PullTicket:
    found = await sync_to_async(keys.ticket_public_keys)()
    public = {kid: Ed25519PublicKey.from_public_bytes(key) for kid, key in found.items()}
    return read_pull_ticket(world.replica.pulls[-1], public, now=time.time(), reader_id=str(world.replica.id))


async def test_a_long_prompt_is_computed_by_one_replica_and_answered_by_another(
    world: World, prompts: ScriptedReplica
) -> None:
    data = await ask(world)
    (alone,), (answered,) = prompts.served, world.replica.served
    assert (alone["action"], alone.get("max_tokens", 0)) == ("prefill", 0)
    assert answered["action"] == "predict" and answered["cached_tokens"] == 4
    assert alone["jti"] == answered["jti"] and alone["body_sha256"] == answered["body_sha256"]
    assert prompts.pulls == [None]
    ticket = await pull_of(world)
    assert (ticket.jti, ticket.attempt) == (answered["jti"], 1)
    assert (ticket.source_id, ticket.source_url) == (str(prompts.id), URL)
    assert ticket.source_key == encode_base64url(prompts.public_key)
    assert ticket.reader_key == encode_base64url(world.replica.public_key)
    assert (ticket.adapter, ticket.cache_scope) == (answered["adapter"], str(world.consumer.pk))
    assert data["usage"]["cost_nano_usd"] == COST
    assert (await money(world))["posted"] == FUNDS - COST


async def test_what_the_first_replica_had_is_charged_as_cached_though_the_second_had_nothing(
    world: World, prompts: ScriptedReplica
) -> None:
    prompts.cached, world.replica.cached = 7, 0
    data = await ask(world)
    cost = 3 * 1000 + 7 * 100 + 5 * 3000 + 500
    assert data["usage"]["cost_nano_usd"] == cost
    assert (await money(world))["posted"] == FUNDS - cost


async def test_a_stream_is_computed_apart_as_well(world: World, prompts: ScriptedReplica) -> None:
    answer = await world.http.post("/v1/chat/completions", json=world.body(messages=LONG, stream=True))
    text = await answer.text()
    assert "".join(e["choices"][0]["delta"]["content"] for e in events(text)) == "The answer is 42."
    assert [one["action"] for one in prompts.served] == ["prefill"]
    assert (await money(world))["posted"] == FUNDS - COST


async def test_a_prefill_that_fails_is_computed_where_it_is_answered(world: World, prompts: ScriptedReplica) -> None:
    modes = ["refuse", "nonsense", "drop", "no_receipt", "forged_receipt", "drop_midway", "a completion counted"]
    for number, mode in enumerate(modes, 1):
        prompts.mode, prompts.lies = mode, {"completion_tokens": 3} if mode == "a completion counted" else {}
        data = await ask(world, messages=[{"role": "user", "content": f"{mode} " * 2000}])
        assert data["usage"]["cost_nano_usd"] == COST
        assert len(prompts.served) == number and world.replica.pulls == [None] * number
        assert world.replica.served[-1].get("cached_tokens") is None
        after = await money(world)
        assert after["posted"] == FUNDS - number * COST and after["holds"] == ["settled"] * number


async def test_a_client_that_leaves_meanwhile_stops_the_prompt_and_pays_nothing(
    world: World, prompts: ScriptedReplica
) -> None:
    prompts.mode = "silent"
    asking = asyncio.create_task(ask(world))
    while not prompts.served:
        await asyncio.sleep(0.01)
    asking.cancel()
    while not prompts.abandoned:
        await asyncio.sleep(0.01)
    assert not world.replica.served
    while (await money(world))["holds"] != ["released"]:
        await asyncio.sleep(0.01)
    assert (await money(world))["posted"] == FUNDS


async def test_other_requests_are_answered_in_one_place(world: World, prompts: ScriptedReplica) -> None:
    short = [{"role": "user", "content": "short"}]
    for changes in ({"messages": short}, {"messages": LONG, "n": 2}):
        answer = await world.http.post("/v1/chat/completions", json=world.body(**changes))
        assert answer.status == 200
    assert not prompts.served and world.replica.pulls == [None, None]


@pytest.mark.parametrize(("role", "stats"), [("both", BUSY), ("decode", BUSY | {"running": 0})])
async def test_a_replica_of_both_roles_and_an_idle_one_compute_their_prompts_themselves(
    world: World, prompts: ScriptedReplica, role: str, stats: dict[str, object]
) -> None:
    await Replica.objects.filter(pk=world.replica.id).aupdate(role=role, stats=stats)
    await ask(world)
    assert not prompts.served and world.replica.pulls == [None]


async def test_a_replica_for_prompts_alone_is_never_asked_for_an_answer(world: World, prompts: ScriptedReplica) -> None:
    await Replica.objects.filter(pk=world.replica.id).adelete()
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    assert answer.status == 503 and not prompts.served
    assert (await money(world))["holds"] == []
