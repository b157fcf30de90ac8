"""Splitting a replica's stream into events, whatever the network makes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest

from marketplace.gateway.sse import StreamBroken, events
from protocol.bodies import MAX_EVENT_BYTES
from protocol.events import DONE, format_event

pytestmark = pytest.mark.asyncio


class Content:
    """The body of a response that arrives in these chunks, and then ends or fails."""

    def __init__(self, chunks: Sequence[bytes], failure: Exception | None = None) -> None:
        self._chunks, self._failure = chunks, failure

    async def iter_any(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
        if self._failure is not None:
            raise self._failure


async def split(chunks: Sequence[bytes], failure: Exception | None = None) -> list[bytes]:
    content: Any = Content(chunks, failure)
    return [event async for event in events(content)]


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


@pytest.mark.parametrize(
    "failure",
    [aiohttp.ClientPayloadError(), RuntimeError("Connection closed."), TimeoutError(), ConnectionResetError()],
)
async def test_a_lost_connection_is_a_broken_stream(failure: Exception) -> None:
    with pytest.raises(StreamBroken):
        await split([DONE], failure)


async def test_a_stream_that_ends_inside_an_event_is_broken() -> None:
    with pytest.raises(StreamBroken):
        await split([b"id: 1\ndata: {"])
