"""An ASGI wrapper that stops a request body at a limit.

Django's ASGI handler writes the whole body to a temporary file before any view sees the request: without this, one
client could fill the disk with a body that the view would have refused.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from marketplace.accounts.envelope import envelope
from marketplace.api.errors import body_too_large
from protocol.request_ids import REQUEST_ID_HEADER, request_id_from

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# The largest body that any view takes is a chunk of a package (8 MiB).
DEFAULT_LIMIT = 9 * 2**20
# Forms with customers' texts stay below what Django keeps in memory: nothing is written to disk in the clear. Whoever
# sends more is led back to the page, which says so.
IN_MEMORY: Mapping[str, tuple[int, str]] = {"/dashboard/batches": (2**21 + 2**17, "/dashboard/batches?too-large")}
_DRAINED = 64 * 2**20  # a browser that is still sending would see a reset connection instead of the answer


class BodyLimit:
    """Wraps `app`; a body of more than `limit` bytes gets 413, announced or not."""

    def __init__(self, app: App, limit: int = DEFAULT_LIMIT) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        limit, back = IN_MEMORY.get(scope["path"], (self._limit, ""))
        if back and (
            not announced.isdigit() or int(announced) > limit or b"transfer-encoding" in dict(scope["headers"])
        ):
            await _lead_back(receive, send, back)
            return
        if not announced.isdigit() or int(announced) > self._limit:
            await _refuse(send, self._limit)
            return
        seen = 0
        too_large = False

        async def counted() -> Message:
            nonlocal seen, too_large
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                too_large = True
                return {"type": "http.disconnect"}  # the app stops reading and gives up
            return message

        async def guarded(message: Message) -> None:
            if not too_large:
                await send(message)

        await self._app(scope, counted, guarded)
        if too_large:
            await _refuse(send, self._limit)


async def _refuse(send: Send, limit: int) -> None:
    refusal = body_too_large(limit)
    request_id = request_id_from(None)
    body = json.dumps(envelope(refusal, request_id)).encode()
    headers = [
        (REQUEST_ID_HEADER.encode(), request_id.encode()),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _lead_back(receive: Receive, send: Send, back: str) -> None:
    """Drop the body as it comes, and send the browser to the page."""
    dropped, more = 0, True
    while more and dropped <= _DRAINED:
        message = await receive()
        dropped += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)
    headers = [(b"location", back.encode()), (b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
