"""An ASGI wrapper that gives each network address a share of what pages and the control API take: bodies that are on
their way, and threads with a database connection each.

Nobody is known before a view runs, so a tenant is an address here. A place for a body is given up when the body is
whole, a place for a view when its answer begins. Calls of replicas are no tenant's, and wait for none.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from marketplace.accounts.envelope import envelope
from marketplace.accounts.errors import Refusal
from marketplace.api.body_limit import App, Message, Receive, Scope, Send
from protocol.request_ids import REQUEST_ID_HEADER, request_id_from
from protocol.shares import Bound, Full, Late, Shares, declared

PAGE_BODIES = declared(Bound("page bodies", places=256, share=32, waiting=256, seconds=600.0))
PAGES = declared(Bound("pages", places=8, share=4, waiting=128, seconds=30.0))
PIECE_SECONDS = 30.0
PIECE_BYTES = 2**16  # that come in PIECE_SECONDS, or the rest
STATEMENT_SECONDS = 30  # of a web process: PostgreSQL ends a statement then, whatever became of the process
_EXEMPT = ("/internal/", "/static/")


class PageShares:
    """Wraps `app`: what finds no place gets 429 where its own address fills its share, else 503; a slow body 408."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._bodies, self._pages = Shares(PAGE_BODIES), Shares(PAGES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http" or scope["path"].startswith(_EXEMPT):
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        visit = _Visit(client[0] if client else None, receive, send, self._bodies, self._pages)
        try:
            await self._app(scope, visit.receive, visit.send)
        except (Full, Late) as error:
            await _refuse(send, _refusal(error))
        finally:
            visit.leave()


class _Visit:
    """One request: which place it holds."""

    def __init__(self, address: str | None, receive: Receive, send: Send, bodies: Shares, pages: Shares) -> None:
        self._address, self._receive, self._send = address, receive, send
        self._bodies, self._pages = bodies, pages
        self._holds: Shares | None = None
        self._whole = False
        self._until = self._piece_until = 0.0
        self._seen = self._piece = 0

    async def receive(self) -> Message:
        """Return the next message. Raises Full, and Late for a body that is slow or a view that waits too long."""
        if self._whole:
            return await self._receive()
        if self._holds is None:
            await self._take(self._bodies)
            now = time.monotonic()
            self._until, self._piece_until = now + (PAGE_BODIES.seconds or 0.0), now + PIECE_SECONDS
        message = await self._piece_in_time()
        self._whole = message["type"] != "http.request" or not message.get("more_body", False)
        if self._whole:
            self.leave()
            if message["type"] == "http.request":
                await self._take(self._pages)
        return message

    async def send(self, message: Message) -> None:
        """Send a message; from the first on, the view's thread is done but for the answer."""
        self.leave()
        await self._send(message)

    def leave(self) -> None:
        """Give up the place that is held."""
        held, self._holds = self._holds, None
        if held is not None:
            held.give(self._address)

    async def _take(self, shares: Shares) -> None:
        try:
            async with asyncio.timeout(shares.bound.seconds):
                await shares.take(self._address)
        except TimeoutError:
            raise Late(shares.bound.name) from None
        self._holds = shares

    async def _piece_in_time(self) -> Message:
        try:
            async with asyncio.timeout(max(0.0, min(self._until, self._piece_until) - time.monotonic())):
                message = await self._receive()
        except TimeoutError:
            raise Late(PAGE_BODIES.name) from None
        self._seen += len(message.get("body", b""))
        if self._seen - self._piece >= PIECE_BYTES:
            self._piece, self._piece_until = self._seen, time.monotonic() + PIECE_SECONDS
        return message


def _refusal(error: Full | Late) -> Refusal:
    again = {"retry-after": "2"}
    if isinstance(error, Full) and error.own:
        message = "Your network has as many requests under way as it may have. Try again in a moment."
        return Refusal(message, code="share_full", status=429, headers=again)
    if isinstance(error, Late) and str(error) == PAGE_BODIES.name:
        return Refusal("The request body did not arrive in time.", code="body_timeout", status=408)
    message = "The platform has as much to do as it takes. Try again in a moment."
    return Refusal(message, code="busy", status=503, headers=again)


async def _refuse(send: Send, refusal: Refusal) -> None:
    request_id = request_id_from(None)
    body = json.dumps(envelope(refusal, request_id)).encode()
    headers: dict[str, Any] = {
        REQUEST_ID_HEADER: request_id,
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **refusal.headers,
    }
    raw = [(name.encode(), str(value).encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
