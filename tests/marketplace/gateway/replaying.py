"""Requests under one Idempotency-Key, for tests: from several callers, through several gateways."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import uvicorn
from asgiref.sync import sync_to_async

from billing.lots import deposit
from billing.models import Account, LedgerTransaction, Lot
from marketplace.accounts.models import Organization
from marketplace.accounts.services import create_api_key
from marketplace.gateway.app import Gateway
from tests.marketplace.gateway.conftest import (
    FUNDS,
    World,
)

CHAT = "/v1/chat/completions"
KEY = {"idempotency-key": "order-1"}


def is_replay(answer: aiohttp.ClientResponse) -> bool:
    return answer.headers.get("idempotent-replayed") == "true"


async def ask(world: World, http: aiohttp.ClientSession | None = None, **body: object) -> tuple[Any, bytes]:
    """Make the request of the tests under KEY; return the response and its body."""
    answer = await (http or world.http).post(CHAT, json=world.body(**body), headers=KEY)
    return answer, await answer.read()


async def code_of(answer: aiohttp.ClientResponse) -> str:
    return str((await answer.json())["error"]["code"])


@contextlib.asynccontextmanager
async def second_gateway(world: World) -> AsyncIterator[aiohttp.ClientSession]:
    """Another gateway over the same books."""
    server = uvicorn.Server(uvicorn.Config(Gateway(), port=0, log_level="warning", lifespan="on"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done()
        await asyncio.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    async with aiohttp.ClientSession(url, headers=dict(world.http.headers)) as http:
        yield http
    server.should_exit = True
    await task


@sync_to_async
def new_organization(world: World) -> tuple[Organization, str]:
    """Another customer with credit; return it and the text of its API key."""
    other = Organization.objects.create(slug="other", name="Other")
    deposit(
        organization=other,
        amount_nano_usd=FUNDS,
        source=Account.Kind.STRIPE_CASH,
        lot_kind=Lot.Kind.PAID,
        kind=LedgerTransaction.Kind.TOP_UP,
        reference=str(uuid.uuid4()),
    )
    return other, create_api_key(organization=other, name="t", scopes=["predict"], created_by=None)[1]
