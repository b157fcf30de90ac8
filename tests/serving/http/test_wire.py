"""A token and its receipt go out in one write: a process may be killed between two."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from protocol.events import checkpoint_of
from serving.http.wire import EventStream


async def test_a_token_and_the_receipt_for_it_are_one_write() -> None:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    events = EventStream(send)
    await events.event({"a": 1}, 1, "a.b.c")
    await events.event({"a": 2}, 2)
    assert [message["body"] for message in sent] == [
        b'id: 1\ndata: {"a":1}\n\n: checkpoint a.b.c\n\n',
        b'id: 2\ndata: {"a":2}\n\n',
    ]
    assert checkpoint_of(sent[0]["body"].split(b"\n\n")[1] + b"\n\n") == "a.b.c"
