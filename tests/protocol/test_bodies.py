"""Bodies are read whole, up to a limit and in a time, whatever the sender does."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from protocol.bodies import collect, read_body
from protocol.errors import BodyTooLarge, BodyTooSlow, ClientGone


class Sender:
    """Plays ASGI messages, then never sends again."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)

    async def __call__(self) -> MutableMapping[str, Any]:
        if not self.messages:
            await asyncio.Event().wait()
        return self.messages.pop(0)


def part(data: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


async def test_a_body_in_pieces_is_read_whole() -> None:
    assert await read_body(Sender(part(b"ab"), part(b""), part(b"c", more=False)), limit=3) == b"abc"
    assert await read_body(Sender({"type": "http.request"}), limit=0) == b""


async def test_a_body_over_the_limit_is_read_to_its_end_and_refused() -> None:
    sender = Sender(part(b"abcd"), part(b"e" * 100), part(b"f", more=False))
    with pytest.raises(BodyTooLarge) as caught:
        await read_body(sender, limit=3)
    assert caught.value.limit == 3 and sender.messages == []


async def test_a_body_without_end_is_not_read_for_ever() -> None:
    sender = Sender(*[part(b"x" * (1 << 20))] * 40)
    with pytest.raises(BodyTooLarge):
        await read_body(sender, limit=10)
    assert len(sender.messages) > 20


async def test_a_sender_that_stops_or_hangs_up_is_noticed() -> None:
    with pytest.raises(BodyTooSlow):
        await read_body(Sender(part(b"a")), seconds=0.05)
    with pytest.raises(ClientGone):
        await read_body(Sender(part(b"a"), {"type": "http.disconnect"}))


def test_an_answer_is_collected_up_to_its_limit() -> None:
    taken = []

    def chunks() -> Any:
        for chunk in (b"ab", b"cd", b"ef", b"gh"):
            taken.append(chunk)
            yield chunk

    assert collect([b"ab", b"", b"c"], limit=3) == b"abc"
    with pytest.raises(BodyTooLarge):
        collect(chunks(), limit=3)
    assert taken == [b"ab", b"cd"]
