"""Requests to a replica that is frozen are given up; those to replicas that live, or whose answers flow, are not."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from marketplace.gateway.silence import SETTLED_SECONDS, SilenceWatch
from marketplace.vault.models import Replica
from tests.marketplace.gateway.conftest import UNTOUCHED, World, money, until, until_closed

pytestmark = [pytest.mark.asyncio, pytest.mark.django_db(transaction=True)]

SILENT = 0.3


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def watch_of(world: World) -> tuple[SilenceWatch, Clock]:
    """A watch whose database has answered for long."""
    clock = Clock()
    parts = world.gateway._ready.parts
    watch = SilenceWatch(parts.books.database, parts.replicas, silent_seconds=SILENT, clock=clock)
    await watch.look()
    clock.now += SETTLED_SECONDS
    return watch, clock


@sync_to_async
def heard(seconds_ago: float) -> None:
    Replica.objects.update(last_seen_at=timezone.now() - timedelta(seconds=seconds_ago))


async def asked(world: World, **changes: Any) -> asyncio.Task[Any]:
    """A request that its replica has."""
    seen = len(world.replica.received)
    task = asyncio.create_task(world.http.post("/v1/chat/completions", json=world.body(**changes)))

    async def there() -> bool:
        return len(world.replica.received) > seen

    await until(there)
    return task


@pytest.mark.parametrize("stream", [False, True])
async def test_the_caller_of_a_frozen_replica_hears_of_it_and_pays_nothing(world: World, stream: bool) -> None:
    watch, _ = await watch_of(world)
    world.replica.mode = "silent"
    task = await asked(world, stream=stream)
    await asyncio.sleep(SILENT + 0.1)
    assert await watch.look() == 0, "its heartbeats arrive"
    await heard(1.0)
    assert await watch.look() == 1
    answer = await task
    assert answer.status == 503 and "Nothing was charged" in await answer.text()
    world.replica.mode = "normal"
    assert await until_closed(world) == UNTOUCHED | {"holds": ["released"]}


async def test_an_answer_that_flows_goes_on_though_no_heartbeat_arrives(world: World) -> None:
    watch, _ = await watch_of(world)
    world.replica.mode = "silent"
    task = await asked(world)
    await heard(1.0)
    assert await watch.look() == 0, "its request is younger than the silence"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until_closed(world)


async def test_after_the_database_was_away_heartbeats_get_time_to_arrive(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, clock = await watch_of(world)
    world.replica.mode = "silent"
    task = await asked(world)
    await asyncio.sleep(SILENT + 0.1)
    await heard(1.0)
    with monkeypatch.context() as away:
        away.setattr(watch._database, "connection", _away)
        assert await watch.look() == 0
    assert await watch.look() == 0, "it answers again since a moment ago"
    clock.now += SETTLED_SECONDS
    assert await watch.look() == 1
    assert (await task).status == 503
    assert (await money(world))["usage"] == 0


def _away() -> Any:
    raise psycopg.OperationalError("the database is away")
