"""Reading a body up to a limit and in a time, before anything parses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from protocol.errors import BodyTooLarge, BodyTooSlow, ClientGone

MAX_MESSAGE_BYTES = 1 << 20  # of every request and answer between platform and replicas, predictions and packages apart
# A replica refuses a prediction whose events or whole answer could be larger; the gateway reads up to these.
MAX_EVENT_BYTES = 1 << 20
MAX_ANSWER_BYTES = 64 << 20

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

# A client that is still sending would see a reset connection instead of the refusal: this much more is dropped.
_DRAINED_BYTES = 16 << 20


async def read_body(receive: Receive, *, limit: int = MAX_MESSAGE_BYTES, seconds: float = 60.0) -> bytes:
    """Return the whole body of an ASGI request.

    Raises BodyTooLarge for more than `limit` bytes, BodyTooSlow after `seconds`, and ClientGone.
    """
    try:
        async with asyncio.timeout(seconds):
            return await _read(receive, limit)
    except TimeoutError:
        raise BodyTooSlow(seconds) from None


async def _read(receive: Receive, limit: int) -> bytes:
    body, size, more = bytearray(), 0, True
    while more and size <= limit + _DRAINED_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size <= limit:
            body += part
        more = message.get("more_body", False)
    if size > limit:
        raise BodyTooLarge(limit)
    return bytes(body)


async def collect_stream(chunks: AsyncIterable[bytes], *, limit: int = MAX_MESSAGE_BYTES) -> bytes:
    """Do what `collect` does with chunks that are still arriving."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limit:
            raise BodyTooLarge(limit)
    return bytes(body)


def collect(chunks: Iterable[bytes], *, limit: int = MAX_MESSAGE_BYTES) -> bytes:
    """Return the chunks of an answer in one piece; raises BodyTooLarge as soon as there are more than `limit` bytes."""
    body = bytearray()
    for chunk in chunks:
        body += chunk
        if len(body) > limit:
            raise BodyTooLarge(limit)
    return bytes(body)
