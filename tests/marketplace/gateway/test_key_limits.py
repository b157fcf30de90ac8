"""A key's networks and models are judged before any money is held, and changes of a key reach every web process."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from marketplace.accounts.run_tokens import issue_run_token
from marketplace.accounts.services import change_api_key, revoke_api_key
from tests.marketplace.gateway.conftest import UNTOUCHED, World, money
from tests.marketplace.gateway.replaying import second_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"
SOON = 2  # seconds: the promise


async def change(world: World, **limits: Any) -> None:
    await sync_to_async(change_api_key)(key=world.key, **limits)


async def refused_with(answer: aiohttp.ClientResponse) -> tuple[int, str]:
    return answer.status, (await answer.json())["error"]["code"]


async def test_a_key_is_of_use_within_its_networks_alone(world: World) -> None:
    await change(world, networks=["192.0.2.0/24", "2001:db8::/32"])
    assert await refused_with(await world.http.post(CHAT, json=world.body())) == (403, "address_not_allowed")
    assert await refused_with(await world.http.get("/v1/models")) == (403, "address_not_allowed")
    assert await money(world) == {**UNTOUCHED, "holds": []}
    wrong = {"authorization": f"Bearer {world.key_text[:-4]}AAAA"}
    assert (await world.http.get("/v1/models", headers=wrong)).status == 401, "a stranger learns nothing of the list"
    run = {"authorization": f"Bearer {issue_run_token(key=world.key)}"}
    assert (await world.http.get("/v1/models", headers=run)).status == 200, "the platform calls from its own network"


async def test_forwarded_addresses_count_from_trusted_proxies_alone(world: World) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["client"][0])

    async def ask(peer: str, *forwarded: str) -> str:
        headers = [(b"x-forwarded-for", line.encode()) for line in forwarded]
        scope = {"type": "http", "client": (peer, 1), "headers": headers, "scheme": "http"}
        await ProxyHeadersMiddleware(app, ["10.0.0.0/8", "fd00::/8"])(scope, None, None)  # type: ignore[arg-type]
        return seen[-1]

    assert settings.ENV.trusted_proxies == ()
    assert await ask("203.0.113.9", "192.0.2.1") == "203.0.113.9", "a client may write what it likes"
    assert await ask("10.0.0.1", "192.0.2.1, 198.51.100.7, 10.0.0.2") == "198.51.100.7", "the right-most untrusted one"
    assert await ask("10.0.0.1", "192.0.2.1", "198.51.100.7") == "198.51.100.7"
    assert await ask("fd00::1", "2001:db8::5") == "2001:db8::5"
    assert await ask("10.0.0.1") == "10.0.0.1"


async def test_a_key_calls_and_lists_its_models_alone(world: World) -> None:
    assert (await world.http.post(CHAT, json=world.body())).status == 200
    before = await money(world)
    await change(world, models=["maker/other"])
    world.let_pass(2)
    for name in ("maker/thing", "maker/thing@1", "maker/nothing"):
        answer = await world.http.post(CHAT, json=world.body(model=name))
        assert await refused_with(answer) == (403, "model_not_allowed")
        assert await refused_with(await world.http.get(f"/v1/models/{name}")) == (403, "model_not_allowed")
    quote = await world.http.post("/v1/quote", json=world.body())
    assert await refused_with(quote) == (403, "model_not_allowed")
    run = {"authorization": f"Bearer {issue_run_token(key=world.key)}"}
    assert await refused_with(await world.http.post(CHAT, json=world.body(), headers=run)) == (403, "model_not_allowed")
    assert (await (await world.http.get("/v1/models")).json())["data"] == []
    assert await money(world) == before
    await change(world, models=["maker/other", "maker/thing"])
    world.let_pass(2)
    assert (await world.http.post(CHAT, json=world.body(model="maker/thing@1"))).status == 200
    assert [row["id"] for row in (await (await world.http.get("/v1/models")).json())["data"]] == ["maker/thing"]


async def test_a_revoked_key_ends_within_two_seconds_at_every_web_process(world: World) -> None:
    async with second_gateway(world) as second:
        sessions = (world.http, second)
        assert [(await one.get("/v1/models")).status for one in sessions] == [200, 200]
        await change(world, networks=["192.0.2.0/24"])
        assert await seconds_until(403, world, sessions) <= SOON
        await change(world, networks=[])
        assert await seconds_until(200, world, sessions) <= SOON
        await sync_to_async(revoke_api_key)(key=world.key)
        assert await seconds_until(401, world, sessions) <= SOON


async def seconds_until(status: int, world: World, sessions: tuple[aiohttp.ClientSession, ...]) -> int:
    """Call at every process each second of their caches' time, as busy programs do, until all of them answer so."""
    for seconds in range(60):
        if all([(await one.get("/v1/models")).status == status for one in sessions]):
            return seconds
        world.let_pass(1)
    raise AssertionError("the processes never heard of it")
