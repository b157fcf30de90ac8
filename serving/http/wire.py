"""ASGI at its barest: reading a bounded body, noticing that the client has gone, writing server-sent events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from serving.http.errors import ApiError


def headers_of(scope: Scope) -> dict[str, str]:
    """Names in lower case; of repeated headers the last counts."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


async def read_body(receive: Receive, headers: dict[str, str], limit: int) -> bytes:
    """The whole body. Raises ApiError 413 as soon as it is known to be longer than `limit` bytes."""
    too_large = ApiError(
        413,
        f"The request body is larger than {limit} bytes.",
        code="request_too_large",
        headers={"Connection": "close"},
    )
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_large
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(400, "The client went away before the body was complete.", code="client_disconnected")
        body += message.get("body", b"")
        if len(body) > limit:
            raise too_large
        if not message.get("more_body", False):
            return bytes(body)


async def wait_for_disconnect(receive: Receive) -> None:
    """Returns when the client has gone. Only after the body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream:
    """One response of server-sent events. Nothing is sent before `start`."""

    DONE = b"data: [DONE]\n\n"

    def __init__(self, send: Send) -> None:
        self._send = send

    async def start(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        fixed = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": [*fixed, *headers]})

    async def event(self, value: Any) -> None:
        await self._body(b"data: " + msgspec.json.encode(value) + b"\n\n", more=True)

    async def done(self) -> None:
        await self._body(self.DONE, more=False)

    async def _body(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
