"""Webhooks reach public addresses alone, whatever a name resolves to or an answer redirects to, and are signed."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
import standardwebhooks
from aiohttp import web

from billing.budgets import addresses, webhooks
from billing.budgets.addresses import AddressRefused, checked_addresses, is_public
from billing.models import Webhook
from marketplace.accounts.errors import InvalidInput

LOOPBACK = [ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")]
PRIVATE = (
    "0.0.0.0 10.0.0.1 100.64.0.1 127.0.0.1 169.254.169.254 172.16.0.1 192.0.0.8 192.168.1.1 198.18.0.1 224.0.0.1 "
    "240.0.0.1 255.255.255.255 :: ::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 fe80::1 fc00::1 fd00:ec2::254 ff02::1 "
    "2002:7f00:1:: 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::1 2001:0:7f00:1::ffff 2001:db8::1"
)
MESSAGE = {"type": "part.event", "data": {"alert_id": 7}}


async def post(hook: Webhook, networks: Sequence[addresses.Network]) -> str | None:
    return (await webhooks.post(hook, message_id="alert_7", message=MESSAGE, networks=networks)).error


@pytest.mark.parametrize("address", PRIVATE.split())
def test_addresses_that_are_not_for_everybody_are_refused(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    public = ipaddress.ip_address("93.184.215.14")
    with pytest.raises(AddressRefused):
        found = [public, ipaddress.ip_address(address)]
        checked_addresses("https://example.com", networks=(), resolver=lambda host: found)


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:4700::1111", "64:ff9b::5db8:d70e", "::ffff:93.184.215.14"])
def test_public_addresses_are_called_with_https(address: str) -> None:
    found = [ipaddress.ip_address(address)]
    assert checked_addresses("https://example.com", networks=(), resolver=lambda host: found) == found
    with pytest.raises(AddressRefused, match="https"):
        checked_addresses("http://example.com", networks=(), resolver=lambda host: found)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "[::1]", "localhost"])
def test_every_way_to_write_loopback_is_refused(host: str) -> None:
    with pytest.raises(AddressRefused):
        checked_addresses(f"https://{host}/", networks=())


@pytest.mark.parametrize(
    "url",
    ["", "ftp://a.example", "https://", "https://u:p@a.example", "https://a.example/#x", "https://a.example/ x",
     "https://a.example/\r\nhost: b", "https://a.example:0", "https://é.example", "https://a.example/" + "x" * 500],
)  # fmt: off
def test_what_is_no_plain_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        addresses.check_url(url)


@asynccontextmanager
async def receiver(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    finally:
        await runner.cleanup()


async def test_a_message_is_signed_over_its_id_time_and_body() -> None:
    seen: list[tuple[dict[str, str], bytes]] = []

    async def take(request: web.Request) -> web.Response:
        seen.append(({name.lower(): value for name, value in request.headers.items()}, await request.read()))
        return web.Response(status=204)

    async with receiver(take) as port:
        hook = Webhook(id=uuid.UUID(int=9), url=f"http://localhost:{port}/x")
        assert await post(hook, LOOPBACK) is None
    ((headers, body),) = seen
    key = base64.b64decode(webhooks.secret_of(hook).removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}" and headers["webhook-id"] == "alert_7"
    assert headers["host"] == f"localhost:{port}"
    assert json.loads(body) == MESSAGE
    assert webhooks.secret_of(Webhook(id=uuid.UUID(int=8))) != webhooks.secret_of(hook)


async def test_a_redirect_is_no_delivery_and_is_not_followed() -> None:
    asked: list[str] = []

    async def redirect(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=307, headers={"location": "/inside"})

    async with receiver(redirect) as port:
        hook = Webhook(id=uuid.uuid4(), url=f"http://127.0.0.1:{port}/x")
        assert await post(hook, LOOPBACK) == "the receiver answered 307"
    assert asked == ["/x"]


async def test_a_name_is_resolved_once_and_the_checked_address_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that would lead elsewhere at a second look (DNS rebinding)."""
    looks: list[str] = []

    def resolve(host: str) -> list[addresses.Address]:
        looks.append(host)
        return [ipaddress.ip_address("127.0.0.1" if len(looks) == 1 else "127.0.0.99")]

    async def take(request: web.Request) -> web.Response:
        return web.Response()

    def check(url: str, *, networks: Sequence[addresses.Network]) -> list[addresses.Address]:
        return checked_addresses(url, networks=networks, resolver=resolve)

    monkeypatch.setattr(webhooks, "checked_addresses", check)
    async with receiver(take) as port:
        hook = Webhook(id=uuid.uuid4(), url=f"http://rebinding.example:{port}/x")
        assert await post(hook, LOOPBACK) is None
    assert looks == ["rebinding.example"]


async def test_a_private_address_is_never_connected_to() -> None:
    async def take(request: web.Request) -> web.Response:
        raise AssertionError("a connection was made")

    async with receiver(take) as port:
        hook = Webhook(id=uuid.uuid4(), url=f"https://localhost:{port}/x")
        assert await post(hook, ()) == "the host's address is not public"


async def test_a_receiver_that_drips_or_is_away_costs_a_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "POST_SECONDS", 0.3)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(200):
            writer.write(b"H")
            await asyncio.sleep(0.05)

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    hook = Webhook(id=uuid.uuid4(), url=f"http://127.0.0.1:{port}/")
    assert "could not be reached" in (error := str(await post(hook, LOOPBACK))) or ("did not answer" in error)
    server.close()
    assert await post(hook, LOOPBACK) == "the receiver could not be reached"


async def test_an_answer_without_end_is_read_to_the_end_of_its_head() -> None:
    sent = 0

    async def pour(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b"x" * 65_536)
            sent += 65_536

    async with receiver(pour) as port:
        hook = Webhook(id=uuid.uuid4(), url=f"http://127.0.0.1:{port}/x")
        outcome = await webhooks.post(hook, message_id="event_1", message=MESSAGE, networks=LOOPBACK)
        assert outcome == webhooks.Outcome(None, 200)
    assert sent < 64 * 2**20, "the connection is closed after the head"


def test_for_a_day_after_a_rotation_messages_carry_both_signatures() -> None:
    now = datetime.now(UTC)
    hook = Webhook(id=uuid.UUID(int=9), secret_version=1)
    before, body = webhooks.secret_of(hook), webhooks.body_of(MESSAGE)
    hook.secret_version, hook.previous_secret_until = 2, now + timedelta(hours=24)
    assert webhooks.secret_of(hook) != before
    headers = webhooks.signed_headers(hook, "event_1", body, int(now.timestamp()))
    for secret in (before, webhooks.secret_of(hook)):
        assert standardwebhooks.Webhook(secret).verify(body, headers) == MESSAGE
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(before).verify(body + b" ", headers)
    hook.previous_secret_until = now - timedelta(seconds=1)
    later = webhooks.signed_headers(hook, "event_1", body, int(now.timestamp()))
    assert " " not in later["webhook-signature"]
