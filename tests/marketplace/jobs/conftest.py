"""The running gateway as the platform's own API, OpenAI's client, and a worker that runs in a thread."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from marketplace.accounts.models import Organization
from marketplace.accounts.services import create_api_key
from marketplace.jobs import queue, recording, running
from tests.marketplace.calls.conftest import _own_database_url, shared_gateway, world
from tests.marketplace.calls.conftest import api as calling
from tests.marketplace.gateway.conftest import World

__all__ = ["_own_database_url", "calling", "shared_gateway", "world"]

CHAT = "/v1/chat/completions"


@pytest.fixture
def api(calling: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The world; nothing is sent to a queue, and pauses between tries are short."""
    monkeypatch.setattr(queue, "_send", lambda: None)
    monkeypatch.setattr(recording, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(running, "TICK", 0.02)
    monkeypatch.setattr(running, "_ADVANCE_SECONDS", 0.0)
    return calling


@pytest.fixture
def client(api: World) -> Iterator[openai.OpenAI]:
    """OpenAI's package, unmodified; its calls are made in a thread."""
    with openai.OpenAI(base_url=f"{api.url}/v1", api_key=api.key_text, max_retries=0) as made:
        yield made


@asynccontextmanager
async def stranger(world: World) -> AsyncIterator[aiohttp.ClientSession]:
    """Another organization, with a key of its own."""
    other = await sync_to_async(Organization.objects.create)(slug="other", name="Other")
    _, text = await sync_to_async(create_api_key)(organization=other, name="k", scopes=["predict"], created_by=None)
    async with aiohttp.ClientSession(world.url, headers={"authorization": f"Bearer {text}"}) as http:
        yield http


def lines(world: World, count: int, *, url: str = CHAT, **changes: object) -> bytes:
    """A file of `count` requests."""
    rows = (
        {"custom_id": f"row-{number}", "method": "POST", "url": url, "body": world.body(**changes)}
        for number in range(1, count + 1)
    )
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def file_of(content: bytes, name: str = "rows.jsonl") -> tuple[str, io.BytesIO]:
    return name, io.BytesIO(content)


async def upload(client: openai.OpenAI, content: bytes) -> Any:
    return await asyncio.to_thread(client.files.create, file=file_of(content), purpose="batch")


async def batch_of(client: openai.OpenAI, content: bytes, **changes: Any) -> Any:
    """Upload a file and begin a batch of it."""
    file = await upload(client, content)
    terms: dict[str, Any] = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"} | changes
    return await asyncio.to_thread(lambda: client.batches.create(**terms))


async def work(seconds: float = 20.0) -> None:
    """Do what a worker does with a message of the queue."""

    def in_worker() -> None:
        try:
            running.work(seconds=seconds)
        finally:
            connections.close_all()

    await asyncio.to_thread(in_worker)


async def retrieved(client: openai.OpenAI, batch_id: str) -> Any:
    return await asyncio.to_thread(client.batches.retrieve, batch_id)


async def rows_in(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """The lines of a file of results."""
    assert file_id is not None
    content = await asyncio.to_thread(client.files.content, file_id)
    return [json.loads(line) for line in content.text.splitlines()]
