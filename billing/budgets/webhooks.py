"""Posting to webhooks: the secret and the signature (Standard Webhooks), and one POST to a checked address."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from django.conf import settings

from billing.budgets.addresses import Address, AddressRefused, Network, checked_addresses
from billing.models import Webhook

POST_SECONDS = 10.0  # for everything: name, connection, TLS and the answer's head
_SECRET_PURPOSE = b"intarsia/webhook/v1\0"


def secret_of(webhook: Webhook) -> str:
    """Return the webhook's secret, `whsec_…`: it follows from its id, its version and the platform's secret key."""
    return "whsec_" + base64.b64encode(_key_of(webhook, webhook.secret_version)).decode()


def _key_of(webhook: Webhook, version: int) -> bytes:
    purpose = _SECRET_PURPOSE + webhook.pk.bytes + (b"" if version == 1 else version.to_bytes(2, "big"))
    return hmac.digest(settings.ENV.secret_key.encode(), purpose, "sha256")


def body_of(message: Mapping[str, Any]) -> bytes:
    """Return the body that is posted and signed for a message."""
    return json.dumps(message).encode()


def signed_headers(webhook: Webhook, message_id: str, body: bytes, now: int) -> dict[str, str]:
    """Return the headers with the signature over id, time and body. `now` is in unix seconds.

    For a while after the secret was rotated, the signature by the one before goes along.
    """
    versions = [webhook.secret_version]
    if webhook.previous_secret_until is not None and now < webhook.previous_secret_until.timestamp():
        versions.append(webhook.secret_version - 1)
    signed = b"%b.%d.%b" % (message_id.encode(), now, body)
    signatures = (hmac.digest(_key_of(webhook, version), signed, "sha256") for version in versions)
    return {
        "content-type": "application/json",
        "user-agent": "Intarsia-Webhooks",
        "webhook-id": message_id,
        "webhook-timestamp": str(now),
        "webhook-signature": " ".join("v1," + base64.b64encode(one).decode() for one in signatures),
    }


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one attempt. `error` is None when the receiver answered 2xx; `status` is None without an answer."""

    error: str | None
    status: int | None = None


class _Pinned(AbstractResolver):
    """Gives the checked addresses for every name."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        pass


async def post(
    webhook: Webhook, *, message_id: str, message: Mapping[str, Any], networks: Sequence[Network]
) -> Outcome:
    """Post one message and return how it ended, without an exception. The body of the answer is not read.

    A message that is posted again has the same `message_id`.
    """
    body = body_of(message)
    headers = signed_headers(webhook, message_id, body, int(time.time()))
    try:
        async with asyncio.timeout(POST_SECONDS):
            addresses = await asyncio.to_thread(checked_addresses, webhook.url, networks=networks)
            connector = aiohttp.TCPConnector(resolver=_Pinned(addresses), use_dns_cache=False, force_close=True)
            async with (
                aiohttp.ClientSession(connector=connector, auto_decompress=False) as session,
                session.post(webhook.url, data=body, headers=headers, allow_redirects=False) as answer,
            ):
                arrived = 200 <= answer.status < 300
                return Outcome(None if arrived else f"the receiver answered {answer.status}", answer.status)
    except AddressRefused as refusal:
        return Outcome(str(refusal))
    except TimeoutError:
        return Outcome(f"the receiver did not answer within {POST_SECONDS:.0f} s")
    except (aiohttp.ClientError, OSError, ValueError):
        return Outcome("the receiver could not be reached")
