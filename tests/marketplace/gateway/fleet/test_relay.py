"""The relay ends when it is told to, in whatever it is: a process that stops waits for it."""

from __future__ import annotations

import asyncio

import pytest
from django.conf import settings

from marketplace.gateway.fleet.links import Links
from marketplace.gateway.fleet.relay import Relay

SECONDS = 10.0


@pytest.mark.asyncio
async def test_a_relay_ends_at_whatever_turn_it_is_cancelled() -> None:
    """Most of these moments lie in its start, when it connects, subscribes and sends."""
    for turns in range(80):
        task = asyncio.create_task(Relay(settings.ENV.valkey_url, Links(lambda _: None), lambda _: None).run())
        for turn in range(turns):
            # Other tasks and the sockets have their turn between these.
            await asyncio.sleep(0 if turn % 8 else 0.0005)
        task.cancel()
        await asyncio.wait([task], timeout=SECONDS)
        assert task.done(), f"it goes on, cancelled after {turns} turns"
