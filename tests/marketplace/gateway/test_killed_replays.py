"""A gateway that is killed at any step under a key has charged an answer that can be fetched, or nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import aiohttp
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings

from marketplace.gateway.tasks import sweep_open_holds
from tests.marketplace.gateway.conftest import FUNDS, World, events, money, slow_reader, until
from tests.marketplace.gateway.replaying import CHAT, KEY, ask, is_replay
from tests.marketplace.gateway.test_delivery import ONE_TOKEN
from tests.marketplace.gateway.test_predictions import COST

pytestmark = pytest.mark.asyncio(loop_scope="module")
DEEP = pytest.mark.deep  # a process each: one in the quick tier


@contextlib.asynccontextmanager
async def doomed_gateway(world: World, kill_at: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A gateway in a process of its own, over when it has killed itself."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        environment = os.environ | {
            "DATABASE_URL": settings.ENV.database_url,
            "DELIVERY_DIR": str(settings.ENV.delivery_dir),
            "DJANGO_SETTINGS_MODULE": "marketplace.config.settings",
            "KILL_AT": kill_at,
        }
        command = [sys.executable, "-m", "uvicorn", "tests.marketplace.gateway.killed_at:application", "--lifespan=on"]
        command += [f"--fd={listening.fileno()}", "--log-level=warning"]
        process = subprocess.Popen(command, env=environment, pass_fds=[listening.fileno()])
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        async with slow_reader(url, world) as http:
            yield http

            async def dead() -> bool:
                return process.poll() is not None

            await until(dead)
            assert process.returncode == -9
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


async def close_all(world: World, computed: int) -> int:
    """Let the other gateway and the sweeper end what the dead one left; return what was charged."""
    (claims,) = world.replica.served
    receipt = world.replica.receipt(claims, computed)
    world.replica.journal[claims["jti"]] = {"state": "final", "receipt": receipt}

    async def closed() -> bool:
        await sync_to_async(sweep_open_holds)()
        return "open" not in (await money(world))["holds"]

    await until(closed)
    return FUNDS - int((await money(world))["posted"])


@pytest.mark.parametrize(
    ("kill_at", "charged", "stream"),
    [
        ("after Books.settle", COST, False),
        pytest.param("after Books.settle", COST, True, marks=DEEP),
        *(pytest.param("before Books.settle", 0, stream, marks=DEEP) for stream in (False, True)),
        *(pytest.param("after Client.{send}", COST, stream, marks=DEEP) for stream in (False, True)),
    ],
)
async def test_a_killed_gateway_charged_what_a_retry_fetches_or_nothing(
    world: World, kill_at: str, charged: int, stream: bool
) -> None:
    async with doomed_gateway(world, kill_at.format(send="send_last" if stream else "send_whole")) as http:
        with contextlib.suppress(aiohttp.ClientError):
            await ask(world, http, stream=stream)
    assert await close_all(world, 5) == charged
    again, body = await ask(world, stream=stream)
    assert again.status == 200 and is_replay(again) == bool(charged) and b"42" in body
    assert len(world.replica.served) == (1 if charged else 2)
    assert (await money(world))["posted"] == FUNDS - COST, "one answer, one charge"


@DEEP
@pytest.mark.parametrize(("kill_at", "charged"), [("before Books.delivered", 0), ("after Books.delivered", ONE_TOKEN)])
async def test_a_gateway_that_is_killed_after_its_client_left_a_stream(
    world: World, kill_at: str, charged: int
) -> None:
    world.replica.mode = "slow"
    async with doomed_gateway(world, kill_at) as http:
        answer = await http.post(CHAT, json=world.body(stream=True), headers=KEY)
        await answer.content.readany()
        answer.close()
    (claims,) = world.replica.served
    world.replica.cancelled[claims["jti"]] = 1  # the dead gateway cannot tell it
    assert await close_all(world, 1) == charged
    world.replica.mode = "normal"
    again, body = await ask(world, stream=True)
    assert again.status == 200 and is_replay(again) == bool(charged)
    if charged:
        assert events(body.decode())[-1]["usage"]["cost_nano_usd"] == charged
    assert (await money(world))["posted"] == FUNDS - (charged or COST)


@DEEP
async def test_a_gateway_that_is_killed_before_an_answer_is_kept_charged_nothing(world: World) -> None:
    async with doomed_gateway(world, "before Keeper.keep_whole") as http:
        with contextlib.suppress(aiohttp.ClientError):
            await ask(world, http)
    assert await close_all(world, 5) == 0
    again, _ = await ask(world)
    assert again.status == 200 and not is_replay(again) and (await money(world))["posted"] == FUNDS - COST
