"""Tokens that a closing connection drops were not delivered, also in the moment before the gateway hears of the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from marketplace.gateway.http import Client
from marketplace.gateway.sse import StreamBroken
from marketplace.gateway.streams import _Stream
from protocol.events import format_event

pytestmark = pytest.mark.asyncio


class Connection:
    """A server's connection, as uvicorn has it: a closing transport has an empty buffer, because it drops all."""

    def __init__(self) -> None:
        self.transport = self
        self.is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    async def receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: Any) -> None:
        pass


class Prediction:
    """The record of deliveries of a request without an idempotency key."""

    keeper = None
    mask = None
    validity = heard = None

    def __init__(self) -> None:
        self.handed: list[int] = []

    def handed_over(self, tokens: int) -> None:
        self.handed.append(tokens)


class Response:
    """A replica's stream: a token, and another one in whose moment the client's connection begins to close."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def chunks(self) -> AsyncIterator[bytes]:
        yield format_event(b"{}", 3)
        self._connection.is_closed = True
        yield format_event(b"{}", 4)


async def test_a_token_sent_into_a_closing_connection_is_not_delivered_and_the_one_before_it_is() -> None:
    connection, prediction = Connection(), Prediction()
    with Client(connection.receive, connection.send) as client:
        with pytest.raises(StreamBroken):
            await _Stream(prediction, Response(connection), client).read()  # type: ignore[arg-type]
        assert not client.gone, "the gateway has not heard of the end yet"
        await asyncio.sleep(0)
    assert prediction.handed == [3]
