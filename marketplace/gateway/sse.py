"""Server-sent events, as bytes: split a stream into events without parsing the ones that only pass through."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson

from protocol.bodies import MAX_EVENT_BYTES
from protocol.events import event_data


class StreamBroken(Exception):
    """The replica's stream ended before its last event, or sent what is no event stream."""


def event(data: Any) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def payload(raw: bytes) -> Any:
    """Return the JSON of one raw event, or None for `[DONE]` and comments. Raises StreamBroken."""
    data = event_data(raw)
    if data is None:
        return None
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise StreamBroken("an event is not JSON") from error


async def events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Raw events, each with its closing blank line. Raises StreamBroken on a lost connection or a runaway event."""
    buffer = b""
    try:
        async for chunk in content.iter_any():
            buffer += chunk
            while (end := buffer.find(b"\n\n")) >= 0:
                yield buffer[: end + 2]
                buffer = buffer[end + 2 :]
            if len(buffer) > MAX_EVENT_BYTES:
                raise StreamBroken("an event is too large")
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise StreamBroken(type(error).__name__) from error
    if buffer.strip():
        raise StreamBroken("the stream ended inside an event")
