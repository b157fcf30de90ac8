"""A running gateway with one funded consumer, one published model and one scripted replica."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import aiohttp
import pytest
import pytest_asyncio
import uvicorn
from asgiref.sync import sync_to_async
from django.conf import settings as live
from django.db import connection, connections
from django.utils import timezone

from billing.ledger import get_account
from billing.lots import deposit
from billing.models import Account, GatewayProcess, Hold, LedgerTransaction, Lot, Usage
from billing.selectors import platform_summary
from billing.splits import simple_parts, split_id
from marketplace.accounts.models import ApiKey, Organization
from marketplace.accounts.services import create_api_key
from marketplace.catalog.models import Model, Price, Version
from marketplace.catalog.services import register_base
from marketplace.gateway import silence
from marketplace.gateway.app import Gateway
from marketplace.gateway.cache import TtlCache
from marketplace.vault.models import Replica
from marketplace.vault.services import bootstrap_platform_keys
from protocol.events import event_data
from tests.database import as_superuser, empty_tables
from tests.marketplace.gateway.scripted_replica import ScriptedReplica

FUNDS = 5_000_000  # nano-dollars: a good hundred small predictions, not one of the largest
LARGE = 16 * 2**20  # bytes: more than the sockets between gateway and client hold
FINGERPRINT = "ab" * 32
OF_THE_GATEWAY = ("vault_platformkey", "billing_gateway")  # tables with what it was started with
FORGOTTEN_SECONDS = 24 * 3600.0  # more than any of its caches keeps
UNTOUCHED = {"posted": FUNDS, "held": 0, "creator": 0, "sum": 0, "usage": 0}  # `money` where nothing happened


class CacheClock:
    """The time by which the caches of a gateway grow old: that of the machine, and what tests add."""

    def __init__(self) -> None:
        self.ahead = 0.0  # seconds

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


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
    split_id: int  # of the model
    url: str  # of the gateway
    gateway: Gateway
    server: uvicorn.Server
    clock: CacheClock
    http: aiohttp.ClientSession = field(init=False)

    def body(self, **changes: object) -> dict[str, object]:
        return {"model": "maker/thing", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, **changes}

    def let_pass(self, seconds: float) -> None:
        """Let the gateway's caches grow so much older."""
        self.clock.ahead += seconds

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
    """Wait until the condition holds, for minutes on a busy machine."""
    deadline = time.monotonic() + 300
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


def build(replica: ScriptedReplica, running: Running) -> World:
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
    of_gateway = (running.url, running.gateway, running.server, running.clock)
    return World(consumer, creator, key, text, model, version, replica, split, *of_gateway)


@dataclass
class Running:
    """The gateway that the worlds of one file share, in the event loop of that file."""

    gateway: Gateway
    server: uvicorn.Server
    url: str
    clock: CacheClock
    process: UUID  # of the gateway
    tasks: set[asyncio.Task[Any]]  # of the gateway itself, for as long as it lives

    async def idle(self) -> None:
        """Wait until all is over that the last test began, but connections that a replica holds open."""
        ended = time.monotonic() + 300
        while rest := {one for one in asyncio.all_tasks() - self.tasks - {asyncio.current_task()} if not _stays(one)}:
            await asyncio.wait(rest, timeout=1)
            assert time.monotonic() < ended, f"a test left work behind: {rest}"


def _stays(task: asyncio.Task[Any]) -> bool:
    """Return whether the task belongs to no call: the gateways' links among each other, a replica's connections."""
    return getattr(task.get_coro(), "__qualname__", "").startswith(("Relay.", "RequestHandler."))


@contextlib.contextmanager
def own_database(deliveries: Path) -> Iterator[None]:
    """Point what opens connections by URL at this worker's test database, and a gateway's log at a folder."""
    before = live.ENV
    url = f"{before.database_url.rsplit('/', 1)[0]}/{connection.settings_dict['NAME']}"
    live.ENV = dataclasses.replace(before, database_url=url, delivery_dir=deliveries)
    yield
    live.ENV = before


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_gateway(
    django_db_setup: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Running]:
    """One gateway for all worlds of a file: its start and its first call, over new connections, take half a second."""
    clock = CacheClock()
    clocked = mock.patch.dict(TtlCache.__init__.__kwdefaults__, clock=clock)
    with django_db_blocker.unblock(), own_database(tmp_path_factory.mktemp("deliveries")), clocked:
        await sync_to_async(bootstrap_platform_keys)()
        gateway = Gateway()
        server = uvicorn.Server(uvicorn.Config(gateway, port=0, log_level="warning", lifespan="on"))
        task = asyncio.create_task(server.serve())
        while not server.started:
            assert not task.done()
            await asyncio.sleep(0.005)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        process = (await sync_to_async(GatewayProcess.objects.get)()).pk
        tasks = {one for one in asyncio.all_tasks() if one is not asyncio.current_task()}
        yield Running(gateway, server, url, clock, process, tasks)
        server.should_exit = True
        await task
        await sync_to_async(empty_tables)()
        await sync_to_async(connections.close_all)()  # of the thread that ran the ORM for this loop


def _empty(process: UUID) -> None:
    """Empty the database, but for what a running gateway has there."""
    empty_tables(keep=OF_THE_GATEWAY)
    with as_superuser():
        GatewayProcess.objects.exclude(pk=process).delete()


@pytest_asyncio.fixture(loop_scope="module")
async def world(request: pytest.FixtureRequest, db: None, shared_gateway: Running) -> AsyncIterator[World]:
    """New organizations, a key, a wallet, a model and a replica in a database without any others.

    What a test leaves to the next one is a gateway whose caches are too old to be used. `db` is there for
    pytest-django, which makes a database for tests that ask for it by this name; its transaction stays empty.
    """
    marker = request.node.get_closest_marker("asyncio")
    same_loop = marker is not None and marker.kwargs.get("loop_scope") == "module"
    assert same_loop, 'the gateway answers in its own loop alone: pytest.mark.asyncio(loop_scope="module")'
    replica = ScriptedReplica()
    await replica.start()
    world = await sync_to_async(build)(replica, shared_gateway)
    async with aiohttp.ClientSession(world.url, headers={"authorization": f"Bearer {world.key_text}"}) as world.http:
        yield world
    await shared_gateway.idle()
    await replica.stop()
    await shared_gateway.idle()
    shared_gateway.clock.ahead += FORGOTTEN_SECONDS
    await sync_to_async(_empty)(shared_gateway.process)


@pytest.fixture(autouse=True)
def _no_head_before_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals of streams keep their status, however slow the machine; test_silence.py is about what comes before."""
    monkeypatch.setattr(silence, "HEAD_SECONDS", 3600.0)


@pytest.fixture(autouse=True)
def _own_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """The gateway opens its own pool by URL: point it at this worker's test database, and its log at this test."""
    if "transactional_db" not in request.fixturenames:
        yield
        return
    with own_database(tmp_path):
        yield
