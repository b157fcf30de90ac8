"""X-Request-ID on every answer: the client's id if it can be logged, otherwise a new one."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.request_ids import REQUEST_ID_HEADER, request_id_from
from serving.http.wire import headers_of


class RequestIds:
    """ASGI middleware. Endpoints find the id in the scope as "intarsia.request_id"."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        known = request_id_from(headers_of(scope).get(REQUEST_ID_HEADER))
        scope["intarsia.request_id"] = known

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = known
            await send(message)

        await self._app(scope, receive, named)
