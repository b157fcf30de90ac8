"""Signs of life: what goes out while an answer is not there yet, and how a refusal is told after them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from protocol.events import DONE, WAITING, event_data
from protocol.messages import LateRefusal, decode
from serving.http.errors import ApiError, json_response
from serving.http.keep_alive import KeptAlive
from serving.http.wire import EventStream

pytestmark = pytest.mark.asyncio
SECONDS = 0.02


class Wire:
    """An ASGI server's side: the messages, and a wait for so many of them."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._grew = asyncio.Event()

    async def send(self, message: Any) -> None:
        self.messages.append(message)
        self._grew.set()

    async def reaches(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.messages) < count:
                self._grew.clear()
                await self._grew.wait()

    @property
    def body(self) -> bytes:
        return b"".join(one.get("body", b"") for one in self.messages)

    @property
    def statuses(self) -> list[int]:
        return [one["status"] for one in self.messages if "status" in one]


async def never() -> dict[str, Any]:
    raise AssertionError("nothing is received")


def kept(*, stream: bool) -> tuple[Wire, KeptAlive]:
    wire = Wire()
    alive = KeptAlive(wire.send, seconds=SECONDS)
    alive.begin("7e57", stream=stream)
    return wire, alive


async def test_a_stream_that_waits_and_one_that_pauses_give_signs_of_life() -> None:
    wire, alive = kept(stream=True)
    events = EventStream(alive.send)
    await wire.reaches(3)
    await events.start()
    await events.event({"text": "a"}, 1)
    before = len(wire.messages)
    await wire.reaches(before + 2)
    await events.done()
    ended = len(wire.messages)
    await asyncio.sleep(3 * SECONDS)
    alive.close()
    assert len(wire.messages) == ended, "nothing follows the end"
    assert wire.statuses == [200] and wire.body.startswith(2 * WAITING) and wire.body.endswith(DONE)
    text, _, rest = wire.body.replace(b"id: 1\ndata: ", b"", 1).partition(b'{"text":"a"}\n\n')
    assert set(text.split(b"\n\n")) == {b": waiting", b""} and rest.startswith(2 * WAITING)
    assert (b"x-intarsia-prediction", b"7e57") in wire.messages[0]["headers"]


async def test_a_whole_answer_that_waits_is_preceded_by_spaces() -> None:
    wire, alive = kept(stream=False)
    await wire.reaches(3)
    await json_response({"fine": True})({"type": "http"}, never, alive.send)
    alive.close()
    assert wire.statuses == [200] and wire.body.startswith(b"  ") and msgspec.json.decode(wire.body) == {"fine": True}
    assert b"content-length" not in dict(wire.messages[0]["headers"])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_after_signs_of_life_keeps_its_status(stream: bool) -> None:
    wire, alive = kept(stream=stream)
    await wire.reaches(2)
    refusal = ApiError(429, "The queue is full.", code="queue_full", headers={"Retry-After": "7"})
    await refusal.response()({"type": "http"}, never, alive.send)
    alive.close()
    raw = wire.body.lstrip()
    if stream:
        raw = event_data(wire.body.replace(WAITING, b"").removesuffix(DONE)) or b""
        assert wire.body.endswith(DONE)
    late = decode(raw, LateRefusal)
    assert wire.statuses == [200]
    assert (late.status, late.retry_after, late.error.code) == (429, "7", "queue_full")


@pytest.mark.parametrize("stream", [False, True])
async def test_what_comes_at_once_is_passed_on_untouched(stream: bool) -> None:
    wire, alive = kept(stream=stream)
    refusal = ApiError(429, "The queue is full.", code="queue_full")
    await refusal.response()({"type": "http"}, never, alive.send)
    await asyncio.sleep(3 * SECONDS)
    alive.close()
    assert wire.statuses == [429] and len(wire.messages) == 2 and b'"status"' not in wire.body
