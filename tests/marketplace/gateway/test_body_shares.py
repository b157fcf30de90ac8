"""Bodies that trickle: one organization's fill its own share, and others' calls are read beside them."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest
from asgiref.sync import sync_to_async

from marketplace.accounts.models import Organization
from marketplace.accounts.services import create_api_key
from marketplace.gateway import http
from marketplace.gateway.shares import BODIES
from protocol.shares import Bound, Shares
from tests.marketplace.gateway.conftest import World, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _begin(world: World, key: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Announce a body, and send its first byte."""
    address = urlsplit(world.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: 99\r\n\r\n"
    writer.write(head.encode() + b"{")
    await writer.drain()
    return reader, writer


async def _stranger() -> tuple[Organization, str]:
    other = await sync_to_async(Organization.objects.create)(slug="hostile", name="Hostile")
    _, text = await sync_to_async(create_api_key)(organization=other, name="k", scopes=["predict"], created_by=None)
    return other, text


async def test_slow_bodies_take_one_organizations_share_and_end_with_their_connections(world: World) -> None:
    hostile, key = await _stranger()
    slow = [await _begin(world, key) for _ in range(BODIES.share + 20)]

    async def full() -> bool:
        return http._bodies.held[hostile.pk] == BODIES.share and http._bodies.waiting(hostile.pk) == 20

    await until(full)
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    assert answer.status == 200
    for _, writer in slow:
        writer.close()

    async def free() -> bool:
        return not http._bodies.held and not http._bodies.waiting(hostile.pk)

    await until(free)


async def test_an_organization_whose_bodies_wait_is_refused_and_others_are_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_bodies", Shares(Bound("test", places=4, share=1, waiting=1, seconds=30.0)))
    hostile, key = await _stranger()
    slow = [await _begin(world, key) for _ in range(2)]

    async def full() -> bool:
        return http._bodies.waiting(hostile.pk) == 1

    await until(full)
    answer = await world.http.post(
        "/v1/chat/completions", json=world.body(), headers={"authorization": f"Bearer {key}"}
    )
    assert (answer.status, (await answer.json())["error"]["code"]) == (429, "share_full")
    assert answer.headers["retry-after"] == "1"
    assert (await world.http.post("/v1/chat/completions", json=world.body())).status == 200
    for _, writer in slow:
        writer.close()
