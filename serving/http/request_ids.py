"""X-Request-ID: the client's, where it sent one that can be logged, or a new one; on every answer."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.http.wire import headers_of

_FINE = re.compile(r"[A-Za-z0-9._-]{8,64}")


class RequestIds:
    """ASGI middleware. Endpoints find the id in the scope as "intarsia.request_id"."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = headers_of(scope).get("x-request-id", "")
        known = given if _FINE.fullmatch(given) else str(uuid.uuid4())
        scope["intarsia.request_id"] = known

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-ID"] = known
            await send(message)

        await self._app(scope, receive, named)
