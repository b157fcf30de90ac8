"""ASGI helpers: read a bounded body, notice a disconnected client, write server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from protocol import bodies
from protocol.content_encoding import ACCEPTED, decoded
from protocol.errors import BodyTooLarge, BodyTooSlow, BrokenEncoding, ClientGone, UnknownEncoding
from protocol.events import DONE, format_checkpoint, format_event
from protocol.http1 import ABORT
from serving.http.errors import ApiError

Result = TypeVar("Result")


def headers_of(scope: Scope) -> dict[str, str]:
    """Return headers by lower-case name; the last of repeated headers counts."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


BODY_SECONDS = 60.0


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Return the whole body, without its Content-Encoding.

    Raises ApiError 413 for more than `limit` bytes, 408 when it takes more than a minute, 415 or 400 for its encoding.
    """
    try:
        body = await bodies.read_body(receive, limit=limit, seconds=BODY_SECONDS)
        return decoded(body, headers_of(scope).get("content-encoding", ""), limit=limit)
    except UnknownEncoding as error:
        message, accepted = f"The request body cannot be read: {error}.", {"Accept-Encoding": ACCEPTED}
        raise ApiError(415, message, code="unsupported_encoding", headers=accepted) from None
    except BrokenEncoding as error:
        raise ApiError(400, f"The request body cannot be read: {error}.", code="invalid_encoding") from None
    except BodyTooLarge:
        message = f"The request body is larger than {limit} bytes."
        raise ApiError(413, message, code="request_too_large", headers={"Connection": "close"}) from None
    except BodyTooSlow:
        raise ApiError(408, "The request body did not arrive in time.", code="request_timeout") from None
    except ClientGone:
        message = "The client went away before the body was complete."
        raise ApiError(400, message, code="client_disconnected") from None


def abort(scope: Scope) -> None:
    """Drop the connection and its unsent data, where the server supports that (serving.http.server does): closing it
    would wait for a client that does not read."""
    if (drop := scope.get(ABORT)) is not None:
        drop()


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected. Call it after the body was read.

    A client that closes the sending half of its connection has disconnected: a server cannot tell it from one that is
    gone, and would compute for nobody.
    """
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless(ends: Iterable[asyncio.Task[Any]], doing: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `doing`; cancel it and raise Interrupted when one of `ends` is done before it."""
    task = asyncio.create_task(doing)
    try:
        await asyncio.wait({task, *ends}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Interrupted
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


class Interrupted(Exception):
    """The client hung up, or the request was cancelled, before its work began."""


class EventStream:
    """One response of server-sent events. Nothing is sent before `start`."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def start(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        fixed = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": [*fixed, *headers]})

    async def event(self, value: Any, tokens: int, receipt: str | None = None) -> None:
        """Send one event; `tokens` are the completion tokens that it and those before it complete.

        receipt: of what was sent with it, for the case that no more comes. It goes in the same write: a process that is
        killed between two would leave a token without one, whose charge then waits for its return.
        """
        checkpoint = b"" if receipt is None else format_checkpoint(receipt)
        await self._body(format_event(msgspec.json.encode(value), tokens) + checkpoint, more=True)

    async def done(self) -> None:
        await self._body(DONE, more=False)

    async def _body(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
