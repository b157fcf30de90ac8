"""The loopback door: an ASGI app with the API, the pages for browsers, and the delivery of webhooks.

`POST /double/faults` (with the secret key) sets the fault plan from outside:
`{"requests": [{"kind": "drop_after_commit", "path": "/v1/checkout", "times": 1}], "webhooks": {"copies": 2}}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

import httpx

from devstack.stripe_double import registry
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.faults import Fault, FaultKind, FaultPlan, WebhookFaults
from devstack.stripe_double.messages import ConnectionDropped, Refused, Request, Response, json_response
from protocol.bodies import Receive, read_body
from protocol.errors import BodyTooLarge, BodyTooSlow, ClientGone

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 6 * 1024 * 1024  # a file of evidence has up to 5 MiB
WEBHOOK_SECONDS = 5.0
POLL_SECONDS = 0.1

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class DoubleApp:
    """ASGI callable. Webhooks are sent while the lifespan is open, if `webhook_url` is given."""

    def __init__(self, double: StripeDouble, *, webhook_url: str | None) -> None:
        self._double = double
        self._webhook_url = webhook_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        delivering: asyncio.Task[None] | None = None
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                if self._webhook_url is not None:
                    delivering = asyncio.create_task(deliver_webhooks(self._double, self._webhook_url))
                await send({"type": "lifespan.startup.complete"})
            else:
                if delivering is not None:
                    delivering.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await delivering
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(receive, limit=MAX_BODY_BYTES)
        except ClientGone:
            return
        except BodyTooLarge:
            await _send(send, Refused(413, "invalid_request_error", "The request is too large.").response())
            return
        except BodyTooSlow:
            await _send(send, Refused(408, "invalid_request_error", "The request took too long.").response())
            return
        request = Request(
            method=scope["method"],
            path=scope["path"],
            query=scope["query_string"].decode("latin-1"),
            headers={name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
            body=body,
        )
        try:
            # In a thread: saving the state waits for the disk.
            response = await asyncio.to_thread(self._respond, request)
        except ConnectionDropped:
            # ASGI cannot hang up; an answer shorter than announced makes the server cut the connection.
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        await _send(send, response)

    def _respond(self, request: Request) -> Response:
        if (request.method, request.path) == ("GET", "/health"):
            return json_response(200, {"status": "ok"})
        if (request.method, request.path) == ("POST", "/double/faults"):
            return self._set_faults(request)
        found = registry.find_page(request.method, request.path)
        if found is None:
            return self._double.handle(request)
        page, object_id = found
        try:
            return page.run(self._double, object_id, dict(parse_qsl(request.body.decode("utf-8", "replace"))))
        except Refused as refusal:
            return refusal.response()

    def _set_faults(self, request: Request) -> Response:
        if not self._double.authorized(request):
            return Refused(401, "invalid_request_error", "Invalid API Key provided.").response()
        try:
            plan = json.loads(request.body)
            faults = [Fault(**(fault | {"kind": FaultKind(fault["kind"])})) for fault in plan.get("requests", [])]
            self._double.faults = FaultPlan(faults, WebhookFaults(**plan.get("webhooks", {})))
        except (ValueError, TypeError, KeyError, AttributeError):
            return Refused(400, "invalid_request_error", "This is not a fault plan.").response()
        return json_response(200, {"faults": len(faults)})


async def _send(send: Send, response: Response) -> None:
    headers = [(name.encode(), value.encode()) for name, value in response.headers.items()]
    headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


async def deliver_webhooks(double: StripeDouble, url: str) -> None:
    """Send due events until cancelled; an event without a 2xx answer is sent again later."""
    async with httpx.AsyncClient(timeout=WEBHOOK_SECONDS, trust_env=False) as client:
        while True:
            for event in await asyncio.to_thread(double.due_events):
                body, signature = double.signed_webhook(event)
                headers = {"content-type": "application/json", "stripe-signature": signature}
                try:
                    response = await client.post(url, content=body, headers=headers)
                    delivered = response.is_success
                except httpx.HTTPError as error:
                    logger.info("webhook %s not delivered: %s", event["type"], type(error).__name__)
                    delivered = False
                await asyncio.to_thread(double.record_delivery, event["id"], delivered=delivered)
            await asyncio.sleep(POLL_SECONDS)
