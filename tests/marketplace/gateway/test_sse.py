"""Splitting a replica's stream into events, whatever the network makes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from marketplace.gateway.replicas import ReplicaLost
from marketplace.gateway.sse import StreamBroken, events
from protocol.bodies import MAX_EVENT_BYTES
from protocol.events import DONE, format_event

pytestmark = pytest.mark.asyncio


async def arriving(chunks: Sequence[bytes], failure: Exception | None = None) -> AsyncIterator[bytes]:
    """The body of an answer that arrives in these chunks, and then ends or fails."""
    for chunk in chunks:
        yield chunk
    if failure is not None:
        raise failure


async def split(chunks: Sequence[bytes], failure: Exception | None = None) -> list[bytes]:
    return [event async for event in events(arriving(chunks, failure))]


async def test_events_are_the_same_in_whatever_pieces_they_arrive() -> None:
    wanted = [format_event(b'{"a": 1}', 1), format_event(b"{}", 2), DONE]
    text = b"".join(wanted)
    for size in range(1, len(text) + 1):
        assert await split([text[at : at + size] for at in range(0, len(text), size)]) == wanted


async def test_an_event_may_be_as_large_as_the_protocol_says_and_no_larger() -> None:
    frame = len(format_event(b"", 1))
    largest = format_event(b"x" * (MAX_EVENT_BYTES - frame), 1)
    for size in (2**16, len(largest) + len(DONE)):
        text = largest + DONE
        assert await split([text[at : at + size] for at in range(0, len(text), size)]) == [largest, DONE]
        text = format_event(b"x" * (MAX_EVENT_BYTES - frame + 1), 1)
        with pytest.raises(StreamBroken):
            await split([text[at : at + size] for at in range(0, len(text), size)])


async def test_a_lost_connection_is_a_broken_stream() -> None:
    with pytest.raises(StreamBroken):
        await split([DONE], ReplicaLost("the connection was lost"))


async def test_a_stream_that_ends_inside_an_event_is_broken() -> None:
    with pytest.raises(StreamBroken):
        await split([b"id: 1\ndata: {"])
