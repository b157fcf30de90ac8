"""A running gateway with one funded consumer, one published model and one scripted replica."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import uvicorn
from asgiref.sync import sync_to_async
from django.db import connections
from django.utils import timezone

from billing.ledger import get_account
from billing.lots import deposit
from billing.models import Account, Hold, LedgerTransaction, Lot, Usage
from billing.selectors import platform_summary
from billing.splits import simple_parts, split_id
from marketplace.accounts.models import ApiKey, Organization
from marketplace.accounts.services import create_api_key
from marketplace.catalog.models import Model, Price, Version
from marketplace.catalog.services import register_base
from marketplace.gateway import silence
from marketplace.gateway.app import Gateway
from marketplace.vault.models import Replica
from marketplace.vault.services import bootstrap_platform_keys
from protocol.events import event_data
from tests.marketplace.gateway.scripted_replica import ScriptedReplica

FUNDS = 5_000_000  # nano-dollars: a good hundred small predictions, not one of the largest
LARGE = 16 * 2**20  # bytes: more than the sockets between gateway and client hold
FINGERPRINT = "ab" * 32
UNTOUCHED = {"posted": FUNDS, "held": 0, "creator": 0, "sum": 0, "usage": 0}  # `money` where nothing happened


@dataclass
class World:
    """Everything for a test to call the gateway and to look at the consequences."""

    consumer: Organization
    creator: Organization
    key: ApiKey
    key_text: str
    model: Model
    version: Version
    replica: ScriptedReplica
    http: aiohttp.ClientSession
    split_id: int = 0  # of the model
    url: str = ""  # of the gateway
    gateway: Gateway = field(default_factory=Gateway)
    server: uvicorn.Server = field(init=False)

    def body(self, **changes: object) -> dict[str, object]:
        return {"model": "maker/thing", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, **changes}

    def balance(self, organization: Organization, kind: str) -> Account:
        return Account.objects.get(organization=organization, kind=kind)


@sync_to_async
def money(world: World) -> dict[str, Any]:
    """Everything that a request may change about money."""
    wallet = world.balance(world.consumer, "customer_credit")
    return {
        "posted": wallet.posted,
        "held": wallet.held,
        "creator": world.balance(world.creator, "creator_reserve").posted,
        "sum": platform_summary().ledger_sum,
        "holds": list(Hold.objects.values_list("state", flat=True)),
        "usage": Usage.objects.count(),
    }


def events(text: str) -> list[Any]:
    """The JSON of each event of a stream."""
    raw = [event_data(f"{part}\n\n".encode()) for part in text.split("\n\n")]
    return [json.loads(data) for data in raw if data is not None]


async def broken_stream(world: World) -> str:
    """The text of a stream whose replica died once the client had read two tokens."""
    world.replica.mode = "die_midway"
    answer = await world.http.post("/v1/chat/completions", json=world.body(stream=True))
    text = b""
    while text.count(b"\n\n") < 2:
        text += await answer.content.readany()
    world.replica.die.set()
    text += await answer.content.read()
    world.replica.mode = "normal"
    return text.decode()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the condition holds, for a minute at most."""
    deadline = time.monotonic() + 60
    while not await condition():
        assert time.monotonic() < deadline, "it did not come to that"
        await asyncio.sleep(0.02)


async def until_closed(world: World) -> dict[str, Any]:
    """Wait until no hold is open, and return the money then."""

    async def closed() -> bool:
        holds = (await money(world))["holds"]
        return bool(holds) and "open" not in holds

    await until(closed)
    return await money(world)


def slow_reader(url: str, world: World) -> aiohttp.ClientSession:
    """A session whose sockets take little of a LARGE answer before it is read, whatever the system's defaults."""

    def small(address: Any) -> socket.socket:
        made = socket.socket(*address[:3])
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        return made

    connector = aiohttp.TCPConnector(socket_factory=small)
    return aiohttp.ClientSession(url, headers={"authorization": f"Bearer {world.key_text}"}, connector=connector)


def keep_alive() -> None:
    """Let no replica fall silent while a test runs: the machine may be slow, and no heartbeats come."""
    Replica.objects.update(last_seen_at=timezone.now() + timedelta(hours=1))


def build(replica: ScriptedReplica) -> World:
    bootstrap_platform_keys()
    consumer = Organization.objects.create(slug="buyer", name="Buyer")
    creator = Organization.objects.create(slug="maker", name="Maker")
    get_account(kind=Account.Kind.CREATOR_RESERVE, organization=creator)
    deposit(
        organization=consumer,
        amount_nano_usd=FUNDS,
        source=Account.Kind.STRIPE_CASH,
        lot_kind=Lot.Kind.PAID,
        kind=LedgerTransaction.Kind.TOP_UP,
        reference=str(uuid.uuid4()),
    )
    base = register_base(name="tiny", fingerprint=FINGERPRINT, config={}, context_length=2048)
    model = Model.objects.create(organization=creator, slug="thing", base_model=base, title="Thing")
    version = Version.objects.create(
        model=model, number=1, state="published", package_digest="cd" * 32, published_at=timezone.now()
    )
    Price.objects.create(
        model=model,
        input_micro_usd_per_mtok=1_000_000,
        cached_input_micro_usd_per_mtok=100_000,
        output_micro_usd_per_mtok=3_000_000,
        per_prediction_nano_usd=500,
    )
    Replica.objects.create(
        id=replica.id,
        name="scripted",
        url=replica.url,
        base_fingerprint=FINGERPRINT,
        hpke_public_key=b"\0" * 32,
        receipt_public_key=replica.public_key,
        session_digest=b"\0" * 32,
    )
    keep_alive()
    key, text = create_api_key(organization=consumer, name="t", scopes=["predict"], created_by=None)
    split = split_id(simple_parts(creator.pk, 8_000))
    return World(consumer, creator, key, text, model, version, replica, None, split)  # type: ignore[arg-type]


@pytest_asyncio.fixture
async def world(transactional_db: None) -> AsyncIterator[World]:
    replica = ScriptedReplica()
    await replica.start()
    world = await sync_to_async(build)(replica)
    server = world.server = uvicorn.Server(uvicorn.Config(world.gateway, port=0, log_level="warning", lifespan="on"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done()
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    world.url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession(world.url, headers={"authorization": f"Bearer {world.key_text}"}) as world.http:
        yield world
    server.should_exit = True
    await task
    await replica.stop()
    await sync_to_async(connections.close_all)()  # of the thread that ran the ORM for this loop


@pytest.fixture(autouse=True)
def _no_head_before_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals of streams keep their status, however slow the machine; test_silence.py is about what comes before."""
    monkeypatch.setattr(silence, "HEAD_SECONDS", 3600.0)


@pytest.fixture(autouse=True)
def _own_database_url(settings: object, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The gateway opens its own pool by URL: point it at this worker's test database, and its log at this test."""
    if "transactional_db" in request.fixturenames or "world" in request.fixturenames:
        import dataclasses

        from django.conf import settings as live
        from django.db import connection

        name = connection.settings_dict["NAME"]
        url = live.ENV.database_url.rsplit("/", 1)[0] + f"/{name}"
        settings.ENV = dataclasses.replace(live.ENV, database_url=url, delivery_dir=tmp_path)  # type: ignore[attr-defined]
