"""The demand is counted without tenant and text; a pool at zero is woken, and its callers wait or are told how long."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from asgiref.sync import sync_to_async
from django.conf import settings
from django.utils import timezone
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from marketplace.catalog.models import BaseModel
from marketplace.gateway import waking
from marketplace.gateway.demand import DemandCounts
from marketplace.vault.models import Replica
from marketplace.vault.pool_demand import (
    EFFECTS,
    EFFECTS_KEY,
    POOLS_KEY,
    PoolReport,
    read_demands,
    read_pools,
    store_report,
)
from tests.marketplace.gateway.conftest import UNTOUCHED, World, broken_stream, keep_alive, money, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def valkey() -> AsyncIterator[AsyncRedis]:
    found = AsyncRedis.from_url(settings.ENV.valkey_url)
    yield found
    await found.aclose()


@pytest.fixture
def base() -> str:
    """A fingerprint of this test's own: all tests share one Valkey."""
    return uuid.uuid4().hex * 2


def report(base: str, **changes: object) -> PoolReport:
    figures = {"replicas": 0, "ready": 0, "wanted": 0, "least": 0, "most": 4, "ready_seconds": 33.2, "why": "no demand"}
    pool = f"pool-{base[:8]}"
    found = PoolReport(pool=pool, **{**figures, **changes})  # type: ignore[arg-type]
    with Redis.from_url(settings.ENV.valkey_url) as valkey:
        store_report(valkey, found, base=base)
    return found


@sync_to_async
def counted(base: str) -> dict[str, tuple[int, int]]:
    """Calls of the last two minutes by class, and those of them that were refused."""
    with Redis.from_url(settings.ENV.valkey_url) as valkey:
        found = read_demands(valkey, 110).of(base)
    return {name: (round(one.arrivals * 110), round(one.refused * 110)) for name, one in found.classes.items()}


@sync_to_async
def rename_base(world: World, base: str, *, gone: bool) -> None:
    world.replica.base = base
    BaseModel.objects.update(fingerprint=base)
    Replica.objects.update(base_fingerprint=base)
    if gone:
        Replica.objects.update(last_seen_at=timezone.now() - timedelta(minutes=5))


async def test_counts_add_up_over_processes_and_name_no_tenant(valkey: AsyncRedis, base: str) -> None:
    first, second = DemandCounts(valkey), DemandCounts(valkey)
    for _ in range(3):
        first.arrived(base, "standard")
    second.arrived(base, "batch")
    second.missed([base], "interactive")
    await asyncio.gather(first.flush(), second.flush(), first.flush())

    async def whole_second() -> bool:
        return len(await counted(base)) == 3

    await until(whole_second)
    assert await counted(base) == {"standard": (3, 0), "batch": (1, 0), "interactive": (1, 1)}
    keys = [key async for key in valkey.scan_iter("demand:*")]
    assert all([0 < await valkey.ttl(key) <= 120 for key in keys])


async def test_counts_of_a_second_without_valkey_are_forgotten_and_calls_go_on(base: str) -> None:
    away = AsyncRedis.from_url("redis://127.0.0.1:1/0")
    counts = DemandCounts(away)
    counts.arrived(base, "standard")
    await counts.flush()
    assert await counts.pools() == []
    await away.aclose()


async def test_a_prediction_is_demand_for_the_checkpoint_that_serves_it(world: World, base: str) -> None:
    await rename_base(world, base, gone=False)
    for _ in range(2):
        answer = await world.http.post("/v1/chat/completions", json=world.body())
        assert answer.status == 200
    refused = await world.http.post("/v1/chat/completions", json=world.body(), headers={"authorization": "Bearer x"})
    assert refused.status == 401

    async def there() -> bool:
        return await counted(base) == {"standard": (2, 0)}

    await until(there)


async def test_a_pool_at_zero_tells_callers_its_start_and_is_told_of_them(world: World, base: str) -> None:
    await rename_base(world, base, gone=True)
    await sync_to_async(report)(base)
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    assert answer.status == 503 and answer.headers["retry-after"] == "34"
    assert (await answer.json())["error"]["code"] == "no_replica"

    async def there() -> bool:
        return await counted(base) == {"standard": (1, 1)}

    await until(there)
    assert await money(world) == UNTOUCHED | {"holds": []} and world.replica.served == []


async def test_without_a_fleet_the_class_batch_is_refused_like_any_other(world: World, base: str) -> None:
    await rename_base(world, base, gone=True)
    answer = await world.http.post("/v1/chat/completions", json=world.body(service_tier="flex"))
    assert answer.status == 503 and answer.headers["retry-after"] == "2"


async def test_the_class_batch_waits_for_the_start(world: World, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "LOOK_SECONDS", 0.05)
    await rename_base(world, base, gone=True)
    await sync_to_async(report)(base)
    asked = asyncio.create_task(world.http.post("/v1/chat/completions", json=world.body(service_tier="flex")))

    async def counted_as_missed() -> bool:
        return await counted(base) == {"batch": (1, 1)}

    await until(counted_as_missed)
    assert not asked.done() and await money(world) == UNTOUCHED | {"holds": []}, "nothing is held while it waits"
    await sync_to_async(keep_alive)()
    answer = await asked
    assert answer.status == 200 and len(world.replica.served) == 1


async def test_the_class_batch_does_not_wait_for_ever_nor_in_any_number(
    world: World, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waking, "LOOK_SECONDS", 0.05)
    await rename_base(world, base, gone=True)
    await sync_to_async(report)(base, ready_seconds=0.1)
    answer = await world.http.post("/v1/chat/completions", json=world.body(service_tier="flex"))
    assert answer.status == 503 and answer.headers["retry-after"] == "2"
    monkeypatch.setattr(waking, "MOST_WAITING", 0)
    answer = await world.http.post("/v1/chat/completions", json=world.body(service_tier="flex"))
    assert answer.status == 503 and answer.headers["retry-after"] == "1"
    assert await money(world) == UNTOUCHED | {"holds": []}


async def test_what_another_version_wrote_about_a_pool_is_left_out(valkey: AsyncRedis, base: str) -> None:
    found = await sync_to_async(report)(base)
    await valkey.hset(POOLS_KEY, f"odd-{base[:8]}", b'{"report": 1}')

    def known() -> list[str]:
        with Redis.from_url(settings.ENV.valkey_url) as sync:
            return [one.report.pool for one in read_pools(sync) if one.base == base]

    assert await sync_to_async(known)() == [found.pool]
    await valkey.hdel(POOLS_KEY, f"odd-{base[:8]}")


async def test_the_harm_of_lost_replicas_is_counted_by_boot(world: World, valkey: AsyncRedis, base: str) -> None:
    await rename_base(world, base, gone=False)
    text = await broken_stream(world)
    assert "replica_lost" in text
    gone = await sync_to_async(dead_replica)(base)
    good, seen = world.replica.id, set()

    async def asked_both() -> bool:  # until a call's first choice is the dead one
        answer = await world.http.post("/v1/chat/completions", json=world.body(user=uuid.uuid4().hex))
        seen.add(answer.status)
        return (await harm(valkey, gone))["moved"] == 1

    await until(asked_both)
    assert seen == {200}, "no caller saw it"
    assert await harm(valkey, good) == {"moved": 0, "cut": 1, "refused": 0}
    await sync_to_async(Replica.objects.filter(pk=good).delete)()

    async def refused() -> bool:
        answer = await world.http.post("/v1/chat/completions", json=world.body())
        return answer.status == 503 and (await harm(valkey, gone))["refused"] > 0

    await until(refused)


def dead_replica(base: str) -> uuid.UUID:
    """A replica that says it lives, where nobody listens."""
    row = Replica.objects.get()
    row.pk, row.name, row.url = uuid.uuid4(), "dead", "http://127.0.0.1:9"
    row.save(force_insert=True)
    keep_alive()
    return row.pk


async def harm(valkey: AsyncRedis, replica_id: uuid.UUID) -> dict[str, int]:
    found = await valkey.hgetall(EFFECTS_KEY.format(replica_id))
    return {name: int(found.get(name.encode(), 0)) for name in EFFECTS}
