"""Webhooks: where an organization's alerts are posted to, and how each message is signed (Standard Webhooks)."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import socket
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from django.conf import settings
from django.db import IntegrityError, transaction

from billing.budgets.addresses import Address, AddressRefused, Network, check_url, checked_addresses
from billing.models import Webhook
from marketplace.accounts.errors import Conflict, InvalidInput
from marketplace.accounts.locks import lock_organization
from marketplace.accounts.models import Organization

MAX_WEBHOOKS = 5  # of one organization
POST_SECONDS = 10.0  # for everything: name, connection, TLS and the answer's head
_SECRET_PURPOSE = b"intarsia/webhook/v1\0"


@transaction.atomic
def create_webhook(*, organization: Organization, url: str) -> Webhook:
    """Post the organization's alerts to this address too. Raises InvalidInput, Conflict."""
    check_url(url)
    lock_organization(organization.pk)
    if Webhook.objects.filter(organization=organization).count() >= MAX_WEBHOOKS:
        raise Conflict(f"an organization may have {MAX_WEBHOOKS} webhooks", code="too_many_webhooks")
    try:
        with transaction.atomic():
            return Webhook.objects.create(organization=organization, url=url)
    except IntegrityError:
        raise InvalidInput("is a webhook already", field="url") from None


def delete_webhook(*, organization: Organization, webhook_id: UUID) -> bool:
    """Post nothing more to this address. False: it is not the organization's."""
    deleted, _ = Webhook.objects.filter(organization=organization, pk=webhook_id).delete()
    return bool(deleted)


def secret_of(webhook: Webhook) -> str:
    """Return the webhook's secret, `whsec_…`: it follows from its id and the platform's secret key."""
    return "whsec_" + base64.b64encode(_key_of(webhook)).decode()


def _key_of(webhook: Webhook) -> bytes:
    return hmac.digest(settings.ENV.secret_key.encode(), _SECRET_PURPOSE + webhook.pk.bytes, "sha256")


def signed_headers(webhook: Webhook, message_id: str, body: bytes, now: int) -> dict[str, str]:
    """Return the headers with the signature over id, time and body. `now` is in unix seconds."""
    signature = hmac.digest(_key_of(webhook), b"%b.%d.%b" % (message_id.encode(), now, body), "sha256")
    return {
        "content-type": "application/json",
        "user-agent": "Intarsia-Webhooks",
        "webhook-id": message_id,
        "webhook-timestamp": str(now),
        "webhook-signature": "v1," + base64.b64encode(signature).decode(),
    }


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
    webhook: Webhook, *, message_id: str, message: dict[str, Any], networks: Sequence[Network]
) -> str | None:
    """Post one message; return None when the receiver answered 2xx, else why it is not delivered, without an exception.

    A message that is posted again has the same `message_id`.
    """
    body = json.dumps(message).encode()
    headers = signed_headers(webhook, message_id, body, int(time.time()))
    try:
        async with asyncio.timeout(POST_SECONDS):
            addresses = await asyncio.to_thread(checked_addresses, webhook.url, networks=networks)
            connector = aiohttp.TCPConnector(resolver=_Pinned(addresses), use_dns_cache=False, force_close=True)
            async with (
                aiohttp.ClientSession(connector=connector, auto_decompress=False) as session,
                session.post(webhook.url, data=body, headers=headers, allow_redirects=False) as answer,
            ):
                return None if 200 <= answer.status < 300 else f"the receiver answered {answer.status}"
    except AddressRefused as refusal:
        return str(refusal)
    except TimeoutError:
        return f"the receiver did not answer within {POST_SECONDS:.0f} s"
    except (aiohttp.ClientError, OSError, ValueError):
        return "the receiver could not be reached"
