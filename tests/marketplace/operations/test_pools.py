"""Pools add up what replicas tell, show what is asked and wanted, and say when a person is needed."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone
from redis import Redis

from marketplace.operations.fleet import adapters_of
from marketplace.operations.fleet_events import fleet_events
from marketplace.operations.pools import PoolLine, pools
from marketplace.vault.fleets import issue_fleet_credential
from marketplace.vault.identities import Terms
from marketplace.vault.models import EnrolledReplica, Replica
from marketplace.vault.pool_demand import ADD_SCRIPT, EFFECTS_KEY, POOLS_KEY, field_of, store_report
from protocol.demand import PoolReport
from tests.marketplace.vault.factories import make_base, make_lease, make_replica, make_sold

pytestmark = pytest.mark.django_db

FIGURES = {"running": 6, "waiting": 1, "seats": 8, "waits": [0.2, 0.2, 0.2], "kv_blocks_used": 5, "kv_blocks_total": 10}


@pytest.fixture
def fleet() -> str:
    """A pool of a fleet with two replicas; its name, and so its report, are this test's own."""
    name = f"p{uuid.uuid4().hex[:10]}"
    issue_fleet_credential(pool=name, terms=Terms(make_base(), "127.0.0.0/8"), replicas=4)
    for number in range(2):
        make_replica(f"{name}-n-{number}")
    EnrolledReplica.objects.update(fleet_id=name)
    Replica.objects.update(stats=FIGURES)
    return name


def report(name: str, **changes: Any) -> None:
    figures = {"replicas": 2, "ready": 2, "wanted": 2, "least": 0, "most": 4, "ready_seconds": 30.0, "why": "demand"}
    with Redis.from_url(settings.ENV.valkey_url) as valkey:
        store_report(valkey, PoolReport(pool=name, **(figures | changes)), base=make_base().fingerprint)


def the_pool() -> PoolLine:
    (line,) = pools()
    return line


def test_a_pool_adds_up_its_replicas(fleet: str) -> None:
    line = the_pool()
    assert (line.name, line.base, line.live, line.allowed) == (fleet, "tiny", 2, 4)
    assert (line.seats, line.running, line.waiting, line.load_percent, line.kv_percent) == (16, 12, 2, 87, 50)
    assert line.state == "healthy" and line.known is None
    Replica.objects.filter(name=f"{fleet}-n-1").update(last_seen_at=timezone.now() - timedelta(minutes=1))
    EnrolledReplica.objects.filter(name=f"{fleet}-n-0").update(drained_at=timezone.now())
    line = the_pool()
    assert (line.live, line.draining, line.silent, line.seats, line.state) == (0, 1, 1, 0, "down")


def test_plain_replicas_of_one_checkpoint_are_a_pool(fleet: str) -> None:
    make_replica("alone")
    assert [(line.name, line.live) for line in pools()] == [(fleet, 2), ("tiny", 1)]


@pytest.mark.parametrize(
    ("changes", "live", "state"),
    [
        ({}, 2, "healthy"),
        ({"wanted": 3}, 2, "short"),
        ({"wanted": 1}, 0, "starting"),
        ({"wanted": 0}, 0, "asleep"),
    ],
)
def test_a_fleets_report_explains_what_is_missing(fleet: str, changes: Any, live: int, state: str) -> None:
    report(fleet, **changes)
    if not live:
        Replica.objects.update(gone_at=timezone.now())
    line = the_pool()
    assert (line.live, line.state, line.is_healthy) == (live, state, True)


def test_waits_above_the_target_and_a_silent_controller_need_a_person(fleet: str, monkeypatch: Any) -> None:
    report(fleet)
    Replica.objects.update(stats=FIGURES | {"waits": [1.5, 1.5, 1.5]})
    line = the_pool()
    assert (line.state, line.is_healthy) == ("late", False)
    assert [one.is_late for one in line.classes] == [True, False, False]
    Replica.objects.update(stats=FIGURES)
    monkeypatch.setattr("marketplace.vault.pool_demand.REPORT_FRESH_SECONDS", -1.0)
    assert (the_pool().state, the_pool().is_healthy) == ("blind", False)


@pytest.mark.parametrize("stats", [{}, {"waits": "soon", "seats": "many", "running": -4}, {"waits": [None, 1, 2]}])
def test_a_replica_may_send_any_figures(fleet: str, stats: Any) -> None:
    Replica.objects.update(stats=stats)
    line = the_pool()
    assert (line.seats, line.running, line.load_percent, line.state) == (0, 0, None, "healthy")


def test_the_demand_is_that_of_the_base_and_unknown_without_the_counters(fleet: str, settings: Any) -> None:
    base = make_base().fingerprint
    with Redis.from_url(settings.ENV.valkey_url) as valkey:
        second = int(valkey.time()[0]) - 2
        valkey.hincrby(f"demand:{second}", field_of(base, "interactive", refused=False), 40)
        valkey.hincrby(f"demand:{second}", field_of(base, "interactive", refused=True), 10)
        assert ADD_SCRIPT and the_pool().classes[0].arrivals >= 4.0 and the_pool().classes[0].refused >= 1.0
        valkey.hdel(POOLS_KEY, fleet)
    settings.ENV = dataclasses.replace(settings.ENV, valkey_url="redis://127.0.0.1:1/0")
    line = the_pool()
    assert line.demand is None and line.state == "healthy" and line.classes[0].arrivals == 0.0


def test_adapters_are_found_by_their_model(fleet: str) -> None:
    sold = make_sold()
    name = sold.version.model.full_name
    make_lease(sold.version, Replica.objects.get(name=f"{fleet}-n-1"))
    (found,) = adapters_of(name) or []
    assert (found.name, found.replicas) == (f"{name}@{sold.version.number}", (f"{fleet}-n-1",))
    assert adapters_of(f"{name}@{sold.version.number}") == [found]
    for absent in ("", "nobody/nothing", f"{name}@99", f"{name}@x", f"{name}@{'9' * 30}", "a/b/c"):
        assert adapters_of(absent) is None, absent


def test_events_say_what_callers_noticed(fleet: str) -> None:
    boot = Replica.objects.get(name=f"{fleet}-n-0")
    with Redis.from_url(settings.ENV.valkey_url) as valkey:
        valkey.hset(EFFECTS_KEY.format(boot.pk), mapping={"moved": 3, "cut": 1})
        valkey.expire(EFFECTS_KEY.format(boot.pk), 60)
    Replica.objects.filter(pk=boot.pk).update(gone_at=timezone.now() + timedelta(seconds=30))
    ended, *started = fleet_events()
    assert (ended.replica, ended.what, ended.words) == (
        boot.name,
        "ended",
        "3 calls went on elsewhere unseen, 1 stream ended early",
    )
    assert [event.what for event in started] == ["registered", "registered"]
    quiet = Replica.objects.get(name=f"{fleet}-n-1")
    Replica.objects.filter(pk=quiet.pk).update(gone_at=timezone.now() + timedelta(seconds=60))
    assert fleet_events()[0].words == "no caller noticed"
