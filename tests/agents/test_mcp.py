"""`intarsia mcp` by the official SDK's own client, as docs/agents.md configures it, against a whole platform."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from asgiref.sync import sync_to_async
from django.core.asgi import get_asgi_application

from billing.models import Run, Usage
from devstack.state import REPOSITORY
from tests import agents_setup
from tests.marketplace.gateway.conftest import World, _own_database_url, shared_gateway, world

pytestmark = pytest.mark.asyncio(loop_scope="module")

__all__ = ["_own_database_url", "shared_gateway", "world"]


@asynccontextmanager
async def platform(world: World) -> AsyncIterator[str]:
    """The address of one process with gateway and control API, as in production."""
    django = get_asgi_application()

    async def dispatch(scope: Any, receive: Any, send: Any) -> None:
        await (world.gateway if scope["path"].startswith("/v1/") else django)(scope, receive, send)

    server = uvicorn.Server(uvicorn.Config(dispatch, port=0, log_level="warning", lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done()
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await task


async def test_an_agent_searches_quotes_and_buys_within_one_run(world: World, settings: Any, tmp_path: Path) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    (printed,) = re.findall(r"```json\n(.*?)```", (REPOSITORY / "docs" / "agents.md").read_text(), re.DOTALL)
    async with platform(world) as url:
        configuration = printed.replace("https://intarsia.example", url).replace("ik_…", world.key_text)
        environment = agents_setup.environment("agents")
        environment["PYTHONPATH"] += os.pathsep + str(REPOSITORY)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("mcp_client.py")),
            configuration,
            "maker/thing",
            env=environment | {"INTARSIA_CONFIG_DIR": str(tmp_path)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        answered, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()[-3000:]
    said = json.loads(answered.decode().splitlines()[-1])
    assert said["tools"] == ["predict", "quote", "run", "search"]
    (found,) = said["search"]["models"]
    assert (found["model"], found["input_usd_per_million_tokens"]) == ("maker/thing", "$1.00")
    usage = await sync_to_async(lambda: list(Usage.objects.order_by("created_at")))()
    run = await sync_to_async(lambda: Run.objects.select_related("node").get())()
    assert said["quote"]["at_most"]["nano_usd"] >= usage[0].cost_nano_usd
    first, second, refused = said["predict"]
    assert [one["text"] for one in (first, second)] == ["The answer is 42."] * 2
    assert [one["cost"]["nano_usd"] for one in (first, second)] == [one.cost_nano_usd for one in usage]
    assert first["prediction_id"] == str(usage[0].prediction_id)
    assert refused.count("(code run_calls_exhausted)") == 1 and refused.endswith("with more --max-calls.")
    assert said["unknown"].count("(code model_not_found)") == 1 and said["unknown"].endswith("names of models.")
    spent = usage[0].cost_nano_usd + usage[1].cost_nano_usd
    assert (said["run"]["spent"]["nano_usd"], said["run"]["calls"]) == (spent, 2)
    assert said["run"]["budget"] == {"nano_usd": 2_000_000, "usd": "$0.002"} and run.node.spent_total_nano_usd == spent
    assert run.closed_at is not None  # the client went, and so did its budget
    assert answered.count(world.key_text.encode()) == complaints.count(world.key_text.encode()) == 0
