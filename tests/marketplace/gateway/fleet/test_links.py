"""A replica's link to a gateway: heard, renewed, told, and ended by either side."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest
import pytest_asyncio
from asgiref.sync import sync_to_async
from django.db import connections
from django.utils import timezone

from marketplace.catalog.models import Version
from marketplace.vault import demand, identities, services
from marketplace.vault.models import Lease, ReleaseOrder, Replica
from protocol.fleet import LoadNow, encode_frame
from routing import key_of
from serving.platform.errors import SessionRefused
from serving.platform.fleet_stream import FleetStream
from serving.platform.fleet_views import Snapshot, Views
from tests.marketplace.gateway.fleet.ends import FIGURES, Process, linked, process, until
from tests.marketplace.vault.factories import Booted, Sold, make_replica, make_sold, want

pytestmark = [pytest.mark.asyncio, pytest.mark.django_db(transaction=True)]


@pytest_asyncio.fixture
async def platform(transactional_db: None) -> AsyncIterator[Process]:
    await sync_to_async(services.bootstrap_platform_keys)()
    async with process() as one:
        yield one
    await sync_to_async(connections.close_all)()


@sync_to_async
def booted(name: str = "r1") -> Booted:
    made = make_replica(name)
    Replica.objects.filter(pk=made.replica.pk).update(last_seen_at=timezone.now() - timedelta(seconds=20))
    return made


@sync_to_async
def lent(boot: Booted) -> tuple[Sold, str]:
    sold = make_sold()
    want(boot.replica, sold.digest)
    sealed = services.release_key(replica=boot.replica, digest=sold.digest, purpose="serve")
    return sold, str(sealed.grant.release_id)


@sync_to_async
def row(boot: Booted) -> Replica:
    return Replica.objects.get(pk=boot.replica.pk)


async def until_true(holds: Callable[[], bool]) -> None:
    """Wait until the books say so."""
    async with asyncio.timeout(30):
        while not await sync_to_async(holds)():
            await asyncio.sleep(0.02)


async def test_a_link_renews_its_session_and_tells_loads_and_residents(platform: Process) -> None:
    boot = await booted()
    before = timezone.now()
    async with linked(platform.url, boot.session_token) as replica:
        kept = await row(boot)
        assert kept.last_seen_at > before and kept.stats["running"] == 3
        assert "resident" not in kept.stats
        replica.tells(load=LoadNow(8, 5, 2, 0.5, 1.0, 2.0), adapters=["aa", "bb"], near=["cc"], prefixes=[7])
        link = platform.fleet.links.of(boot.replica.pk)
        assert link is not None and link.state is not None
        state = link.state
        await until(lambda: len(state.adapters) == 2)
        assert (key_of("aa") in state.adapters, key_of("cc") in state.near, 7 in state.prefixes) == (True,) * 3
        assert (state.view.load.running, state.whole) == (5, True)
        replica.tells(adapters=["bb"], near=[], prefixes=[7, 9])
        await until(lambda: len(state.adapters) == 1)
        assert key_of("aa") not in state.adapters and 9 in state.prefixes and len(state.near) == 0
    await until(lambda: len(platform.fleet.links) == 0)


async def test_a_lease_that_was_given_back_is_over_in_the_books(platform: Process) -> None:
    boot = await booted()
    async with linked(platform.url, boot.session_token) as replica:
        sold, release_id = await lent(boot)
        replica.leases.grant(release_id, sold.digest, asked_at=replica.leases.now())
        await asyncio.sleep(0)
        replica.leases.give_back(sold.digest)
        await until(lambda: not replica.leases.returned(9))
    assert await sync_to_async(lambda: Lease.objects.get().expires_at)() is not None


async def test_the_kill_switch_reaches_a_replica_over_its_link_alone(platform: Process) -> None:
    boot = await booted()
    async with linked(platform.url, boot.session_token) as replica:
        sold, release_id = await lent(boot)
        replica.leases.grant(release_id, sold.digest, asked_at=replica.leases.now())
        await sync_to_async(Version.objects.filter(pk=sold.version.pk).update)(
            state=Version.State.REVOKED, state_changed_at=timezone.now()
        )
        await until(lambda: replica.ended == [sold.digest] and sold.digest in replica.dropped)  # no lease just ends so
        assert not replica.leases.grant(str(uuid.uuid4()), sold.digest, asked_at=replica.leases.now())

        def confirmed() -> bool:
            return Lease.objects.get().confirmed_at is not None

        await until_true(confirmed)
        assert replica.dropped == [sold.digest], "it is told once"


async def test_a_lease_that_somebody_ended_is_over_and_the_digest_may_come_back(platform: Process) -> None:
    boot = await booted()
    async with linked(platform.url, boot.session_token) as replica:
        sold, release_id = await lent(boot)
        replica.leases.grant(release_id, sold.digest, asked_at=replica.leases.now())
        await sync_to_async(services.revoke_leases)(version=sold.version)
        await until(lambda: replica.ended == [sold.digest])
        assert not replica.leases.is_revoked(sold.digest) and replica.dropped == []


async def test_a_revoked_session_loses_its_link_and_gets_no_other(platform: Process) -> None:
    boot = await booted()
    async with linked(platform.url, boot.session_token) as replica:
        await sync_to_async(identities.revoke_replica)(name="r1")
        await until(lambda: replica.link.refused)
        assert len(platform.fleet.links) == 0
    with pytest.raises(SessionRefused):
        await asyncio.to_thread(FleetStream, platform.url, boot.session_token)
    with pytest.raises(SessionRefused):
        await asyncio.to_thread(FleetStream, platform.url, "made up")


async def test_a_replica_that_closes_its_link_leaves_its_name_to_the_next_boot(platform: Process) -> None:
    boot = await booted()
    async with linked(platform.url, boot.session_token):
        assert (await row(boot)).left_at is None
    await until(lambda: len(platform.fleet.links) == 0)
    await until_true(lambda: Replica.objects.get(pk=boot.replica.pk).left_at is not None)
    async with linked(platform.url, boot.session_token):
        assert (await row(boot)).left_at is None, "it is back"


async def test_a_second_link_of_a_boot_ends_the_first(platform: Process) -> None:
    boot = await booted()
    async with linked(platform.url, boot.session_token):
        first = platform.fleet.links.of(boot.replica.pk)
        assert first is not None
        other = await asyncio.to_thread(FleetStream, platform.url, boot.session_token)
        await until(first.end.done)
        other.close()


async def test_a_hint_reaches_the_replica(platform: Process) -> None:
    boot = await booted()
    async with linked(platform.url, boot.session_token) as replica:
        await sync_to_async(demand.order)(
            replica_id=boot.replica.pk, digest="aa" * 32, kind=ReleaseOrder.Kind.PREFETCH, seconds=60
        )
        platform.fleet.hint(boot.replica.pk, ["aa" * 32])
        await until(lambda: replica.hinted == ["aa" * 32])


async def test_a_server_that_stops_ends_its_links_at_once_and_nobody_has_left(platform: Process) -> None:
    boot = await booted()
    async with linked(platform.url, boot.session_token) as replica:
        await asyncio.wait_for(platform.stop(), 60)  # a server that waits for its links waits for ever
        assert not replica.link.refused and (await row(boot)).left_at is None


async def test_what_a_flood_of_views_costs_is_bounded_and_what_is_no_view_ends_the_link(platform: Process) -> None:
    boot = await booted()
    stream = await asyncio.to_thread(FleetStream, platform.url, boot.session_token)
    link = platform.fleet.links.of(boot.replica.pk)
    assert link is not None
    views = Views()

    def flood(count: int) -> None:
        for turn in range(count):
            view = views.next(Snapshot(LoadNow(seats=8, running=turn), FIGURES), float(turn))
            assert view is not None
            stream.send(encode_frame(view))

    began = time.monotonic()
    await asyncio.to_thread(flood, 20)
    await until(lambda: link.state is not None and link.state.view.seq == 20)
    assert time.monotonic() - began > 1.0, "ten at once, then five a second"
    await asyncio.to_thread(stream.send, (4).to_bytes(4, "big") + b"lies")
    await until(lambda: len(platform.fleet.links) == 0)
    stream.close()
    assert (await row(boot)).left_at is None, "it did not leave by itself"


async def test_a_silent_link_is_closed(platform: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    boot = await booted()
    monkeypatch.setattr(platform.fleet.endpoint, "_silent_seconds", 0.2)
    stream = await asyncio.to_thread(FleetStream, platform.url, boot.session_token)
    await until(lambda: len(platform.fleet.links) == 0)
    stream.close()


async def test_two_processes_tell_each_other_and_a_late_one_asks_for_the_whole(platform: Process) -> None:
    boot = await booted()
    async with linked(platform.url, boot.session_token) as replica:
        replica.tells(adapters=["aa", "bb"])
        async with process() as other:
            await until(lambda: boot.replica.pk in other.fleet.relay._states)
            state = other.fleet.relay._states[boot.replica.pk]
            await until(lambda: state.whole and len(state.adapters) == 2)
            replica.tells(adapters=["bb", "cc", "dd"], load=LoadNow(8, 6))
            await until(lambda: len(state.adapters) == 3 and state.view.load.running == 6)
            state.whole = False  # as if a message was lost
            replica.tells(adapters=["dd"])
            await until(lambda: state.whole and len(state.adapters) == 1)
            other.fleet.hint(boot.replica.pk, ["aa" * 32])
            await until(lambda: replica.hinted == ["aa" * 32])


async def test_without_valkey_own_links_are_heard_and_renewed(
    platform: Process, settings: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    await platform.stop()
    settings.ENV = dataclasses.replace(settings.ENV, valkey_url="redis://127.0.0.1:9/0")  # type: ignore[attr-defined]
    boot = await booted()
    async with process() as alone, linked(alone.url, boot.session_token) as replica:
        replica.tells(adapters=["aa"])
        link = alone.fleet.links.of(boot.replica.pk)
        assert link is not None and link.state is not None
        await until(lambda: len(link.state.adapters) == 1)  # type: ignore[union-attr]
        assert not alone.fleet.relay.up and replica.link.fresh
        for _ in range(5_000):
            alone.fleet.relay.put(link.state, b"x" * 4_000)
        assert alone.fleet.relay._bytes <= 8 << 20 and len(alone.fleet.relay._waiting) <= 4_096
