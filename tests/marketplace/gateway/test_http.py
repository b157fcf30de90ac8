"""Work for a client that may hang up: it is stopped then, and other reasons to stop are not mistaken for that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from marketplace.gateway.http import Client
from protocol.errors import ClientGone

pytestmark = pytest.mark.asyncio


class Line:
    """The connection of a client that hangs up when told to."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.ended.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        raise AssertionError("nothing is sent")

    def client(self) -> Client:
        return Client(self.receive, self.send)


async def test_work_is_cancelled_when_the_client_hangs_up_and_the_request_goes_on() -> None:
    line, stopped = Line(), []

    async def work() -> None:
        try:
            line.ended.set()
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append(True)
            raise

    with line.client() as client:
        with pytest.raises(ClientGone):
            await client.unless_gone(work())
        await asyncio.sleep(0)
        assert stopped == [True] and client.gone
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_a_result_that_comes_with_the_hang_up_is_discarded_and_nothing_is_cancelled_later() -> None:
    line, discarded = Line(), []

    async def work() -> str:
        line.ended.set()
        await asyncio.sleep(0)  # the watch ends in this turn, and its callback comes after the result
        return "late"

    with line.client() as client:
        await asyncio.sleep(0)
        with pytest.raises(ClientGone):
            await client.unless_gone(work(), discarded.append)
        await asyncio.sleep(0.01)
    assert discarded in (["late"], [])


async def test_a_result_and_an_exception_pass_while_the_client_is_there() -> None:
    async def fail() -> None:
        raise OSError("broken")

    with Line().client() as client:
        assert await client.unless_gone(asyncio.sleep(0, "done")) == "done"
        with pytest.raises(OSError, match="broken"):
            await client.unless_gone(fail())


async def test_a_request_that_is_cancelled_itself_stays_cancelled_whether_the_client_leaves_or_not() -> None:
    for leaves in (False, True):
        line, began = Line(), asyncio.Event()

        async def work(began: asyncio.Event = began) -> None:
            began.set()
            await asyncio.sleep(60)

        async def request(line: Line = line) -> None:
            with line.client() as client:
                await client.unless_gone(work())

        task = asyncio.create_task(request())
        await began.wait()
        if leaves:
            line.ended.set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
