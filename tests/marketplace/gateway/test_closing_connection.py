"""Tokens that a closing connection drops were not delivered, also in the moment before the gateway hears of the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from marketplace.gateway.http import Client
from marketplace.gateway.streams import _Stream

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
    """The record of deliveries."""

    def __init__(self) -> None:
        self.handed: list[int] = []

    def handed_over(self, tokens: int) -> None:
        self.handed.append(tokens)


async def test_a_token_that_is_sent_into_a_closing_connection_does_not_count_as_delivered() -> None:
    connection, prediction = Connection(), Prediction()
    with Client(connection.receive, connection.send) as client:
        stream = _Stream(prediction, None, client)  # type: ignore[arg-type]
        stream._note(3)
        connection.is_closed = True
        assert not client.gone
        stream._note(4)
    assert prediction.handed == [3]
