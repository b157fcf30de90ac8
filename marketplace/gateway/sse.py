"""Server-sent events, as bytes: split a stream into events without parsing the ones that only pass through."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

from marketplace.gateway.replicas import ReplicaLost
from protocol.bodies import MAX_EVENT_BYTES


class StreamBroken(Exception):
    """The replica's stream ended before its last event, or sent what is no event stream."""


async def events(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Raw events, each with its closing blank line. Raises StreamBroken on a lost connection or a runaway event."""
    buffer = bytearray()
    try:
        async for chunk in chunks:
            buffer += chunk
            begin = 0
            while (end := buffer.find(b"\n\n", begin)) >= 0:
                if end + 2 - begin > MAX_EVENT_BYTES:
                    raise StreamBroken("an event is too large")
                yield bytes(buffer[begin : end + 2])
                begin = end + 2
            del buffer[:begin]
            if len(buffer) > MAX_EVENT_BYTES:
                raise StreamBroken("an event is too large")
    except ReplicaLost as error:
        raise StreamBroken(type(error).__name__) from error
    if buffer.strip():
        raise StreamBroken("the stream ended inside an event")
