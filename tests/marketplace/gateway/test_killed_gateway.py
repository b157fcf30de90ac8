"""A gateway process that is killed: another one on the machine reads its log and ends what it had in flight."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from asgiref.sync import sync_to_async
from django.conf import settings

from billing.models import Correction, GatewayProcess, Hold
from marketplace.gateway.books import Books
from marketplace.gateway.delivery_log import DeliveryLog
from marketplace.gateway.presence import Presence
from tests.marketplace.gateway.conftest import FUNDS, LARGE, World, money, slow_reader, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def other(world: World) -> AsyncIterator[tuple[aiohttp.ClientSession, subprocess.Popen[bytes]]]:
    """A second gateway, in a process of its own; the first adopts what it leaves behind."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        environment = os.environ | {
            "DATABASE_URL": settings.ENV.database_url,
            "DELIVERY_DIR": str(settings.ENV.delivery_dir),
            "DJANGO_SETTINGS_MODULE": "marketplace.config.settings",
        }
        command = [sys.executable, "-m", "uvicorn", "marketplace.config.asgi:application", "--lifespan=on"]
        command += [f"--fd={listening.fileno()}", "--log-level=warning"]
        process = subprocess.Popen(command, env=environment, pass_fds=[listening.fileno()])
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with slow_reader(url, world) as http:
        async with await http.get("/healthz") as answer:  # the kernel queues it until the process accepts it
            assert answer.status == 200
        yield http, process
    if process.poll() is None:
        process.kill()
    process.wait()


@sync_to_async
def hold_of(jti: str) -> Hold:
    return Hold.objects.get(id=jti)


async def test_a_killed_gateway_leaves_each_prediction_with_what_was_delivered(
    world: World, other: tuple[aiohttp.ClientSession, subprocess.Popen[bytes]]
) -> None:
    http, process = other
    replica = world.replica
    assert await sync_to_async(GatewayProcess.objects.count)() == 2

    replica.mode = "slow"  # a stream of which one token was handed over
    stream = await http.post("/v1/chat/completions", json=world.body(stream=True))
    await stream.content.readany()
    replica.mode = "silent"  # a prediction whose answer has not begun
    waiting = asyncio.create_task(http.post("/v1/chat/completions", json=world.body()))

    async def second_is_served() -> bool:
        return len(replica.served) == 2

    await until(second_is_served)
    replica.mode, replica.padding = "normal", LARGE  # a whole answer that is charged, and on its way
    whole = await http.post("/v1/chat/completions", json=world.body())
    streamed, silent, charged = (claims["jti"] for claims in replica.served)
    assert (await hold_of(charged)).state == "settled"

    process.send_signal(signal.SIGKILL)

    async def ended() -> bool:
        open_holds = await sync_to_async(list)(Hold.objects.filter(state="open", delivered_tokens=None))
        return not open_holds and await sync_to_async(Correction.objects.count)() == 1

    await until(ended)
    verdict = await hold_of(streamed)
    assert (verdict.state, verdict.delivered_tokens) == ("open", 1), "the sweeper settles it from the journal"
    assert (await hold_of(silent)).state == "released"
    assert await sync_to_async(Correction.objects.filter(prediction_id=charged).exists)()
    after = await money(world)
    assert after["posted"] == FUNDS and after["creator"] == 0 and after["sum"] == 0
    with pytest.raises(aiohttp.ClientError):
        await whole.read()
    with pytest.raises(aiohttp.ClientError):
        await waiting
    stream.close()


async def test_a_charge_whose_answer_was_sent_stays_and_a_file_is_read_once(world: World, tmp_path: Path) -> None:
    """A process may die between the last byte of an answer and its own next step."""
    await world.http.post("/v1/chat/completions", json=world.body())
    stream = await world.http.post("/v1/chat/completions", json=world.body(stream=True))
    await stream.read()
    before = await money(world)
    jtis = await sync_to_async(list)(Hold.objects.values_list("id", flat=True))
    folder = tmp_path / "of another"
    log = DeliveryLog(folder, jtis[0])
    for jti in jtis:
        log.open(jti).running(1, 5)
    log.close()
    books = Books(world.gateway._ready.parts.books.database, world.gateway._ready.parts.books.writer, jtis[0])
    assert await Presence(books, folder).adopt() == 2
    assert await Presence(books, folder).adopt() == 0
    assert await money(world) == before


async def test_a_log_is_kept_while_the_database_is_away(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.replica.mode = "slow"
    stream = await world.http.post("/v1/chat/completions", json=world.body(stream=True))
    await stream.content.readany()
    (jti,) = await sync_to_async(list)(Hold.objects.values_list("id", flat=True))
    folder = tmp_path / "of another"
    log = DeliveryLog(folder, jti)
    log.open(jti).unsent(1)
    log.close()
    books = Books(world.gateway._ready.parts.books.database, world.gateway._ready.parts.books.writer, jti)
    presence = Presence(books, folder)

    async def away(*_: object, **__: object) -> bool:
        return False

    with monkeypatch.context() as patched:
        patched.setattr(books, "never_sent", away)
        assert await presence.adopt() == 0
    assert (await money(world))["holds"] == ["open"]
    assert await presence.adopt() == 1
    assert (await money(world))["holds"] == ["released"]
    stream.close()
