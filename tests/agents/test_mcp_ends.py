"""`intarsia mcp` and a client that leaves: every prediction is answered before the end, or broken off and free."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from billing.models import Usage
from devstack.state import REPOSITORY
from tests import agents_setup
from tests.agents.test_mcp import platform
from tests.marketplace.gateway.conftest import (
    UNTOUCHED,
    World,
    _own_database_url,
    money,
    shared_gateway,
    until,
    until_closed,
    world,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

__all__ = ["_own_database_url", "shared_gateway", "world"]
HELLO: list[dict[str, Any]] = [
    {
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "a test", "version": "1"},
        },
    },
    {"method": "notifications/initialized"},
]


def call(number: int, tool: str, **arguments: Any) -> dict[str, Any]:
    return {"id": number, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


PREDICT = call(1, "predict", model="maker/thing", message="Hello", max_tokens=8)


class Client:
    """The client's side of a server that runs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    def send(self, *messages: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        for message in messages:
            self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def answer(self, number: int) -> dict[str, Any]:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == number:
                return message
        raise AssertionError(f"no answer to {number}: {await self.complaints()}")

    async def complaints(self) -> str:
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()[-3000:]


@asynccontextmanager
async def server(world: World, settings: Any, folder: Path) -> AsyncIterator[Client]:
    """A server that was greeted, and whose replica waits with its answers."""
    settings.ALLOWED_HOSTS = ["*"]
    world.replica.mode = "waits"
    async with platform(world) as url:
        environment = agents_setup.environment("agents")
        environment["PYTHONPATH"] += os.pathsep + str(REPOSITORY)
        own = {"INTARSIA_CONFIG_DIR": str(folder), "INTARSIA_URL": url, "INTARSIA_TOKEN": world.key_text}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "creator_cli", "mcp", env=environment | own, stdin=pipe, stdout=pipe, stderr=pipe
        )
        try:
            client = Client(process)
            client.send(*HELLO)
            yield client
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def asked(world: World) -> None:
    async def has() -> bool:
        return bool(world.replica.received)

    await until(has)


async def test_a_prediction_is_answered_though_the_input_has_ended(world: World, settings: Any, tmp_path: Path) -> None:
    async with server(world, settings, tmp_path) as client:
        client.send(PREDICT)
        client.end_input()
        await asked(world)
        world.replica.lives_on.set()
        answer = (await client.answer(1))["result"]
        assert await client.process.wait() == 0, await client.complaints()
    assert answer["structuredContent"]["text"] == "The"
    usage = await sync_to_async(Usage.objects.get)()
    assert answer["structuredContent"]["cost"]["nano_usd"] == usage.cost_nano_usd


async def gone(client: Client) -> None:
    client.end_input()
    client.process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]


async def killed(client: Client) -> None:
    client.process.terminate()


@pytest.mark.parametrize("leave", [gone, killed])
async def test_a_client_that_reads_no_more_pays_nothing(
    world: World, settings: Any, tmp_path: Path, leave: Any
) -> None:
    async with server(world, settings, tmp_path) as client:
        client.send(PREDICT)
        await asked(world)
        await leave(client)
        assert await until_closed(world) == UNTOUCHED | {"holds": ["released"]}
        await client.process.wait()


async def test_a_call_that_is_taken_back_is_free_and_the_server_goes_on(
    world: World, settings: Any, tmp_path: Path
) -> None:
    async with server(world, settings, tmp_path) as client:
        client.send(PREDICT)
        await asked(world)
        client.send({"method": "notifications/cancelled", "params": {"requestId": 1}})
        assert await until_closed(world) == UNTOUCHED | {"holds": ["released"]}
        client.send(call(2, "run"))
        shown = (await client.answer(2))["result"]["structuredContent"]
        assert (shown["spent"]["nano_usd"], shown["calls"]) == (0, 1)
        client.end_input()
        assert await client.process.wait() == 0, await client.complaints()
    assert (await money(world))["usage"] == 0
