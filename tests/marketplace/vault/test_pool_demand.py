"""A fleet's controller reports its pool and reads the demand for its base, with the pool's credential and no other."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from redis import Redis

from marketplace.catalog.models import BaseModel
from marketplace.vault.fleets import issue_fleet_credential, revoke_fleet
from marketplace.vault.identities import Terms
from marketplace.vault.pool_demand import ADD_SCRIPT, field_of, read_demands, read_pools
from tests.marketplace.vault.factories import make_base
from tests.marketplace.vault.registrar import post

pytestmark = pytest.mark.django_db


@pytest.fixture
def base() -> str:
    return uuid.uuid4().hex * 2


@pytest.fixture
def pool(base: str) -> tuple[str, str]:
    """A pool of a base of its own, as all tests share one Valkey: its name and its credential."""
    model = make_base()
    BaseModel.objects.filter(pk=model.pk).update(fingerprint=base)
    name = f"pool-{base[:8]}"
    return name, issue_fleet_credential(pool=name, terms=Terms(model, "127.0.0.0/8"), replicas=3)


def report(name: str, **changes: object) -> dict[str, Any]:
    figures = {"replicas": 2, "ready": 1, "wanted": 2, "least": 0, "most": 3, "ready_seconds": 40.0, "why": "demand"}
    return {"pool": name, **figures, **changes}


def known(name: str) -> list[str]:
    with Redis.from_url(settings.ENV.valkey_url) as valkey:
        return [one.base for one in read_pools(valkey) if one.report.pool == name]


def test_a_report_is_kept_and_the_demand_is_answered(client: Client, pool: tuple[str, str], base: str) -> None:
    name, credential = pool
    with Redis.from_url(settings.ENV.valkey_url) as valkey:
        before = int(valkey.time()[0])
        args: list[str | int] = [
            field_of(base, "standard", refused=False),
            30,
            field_of(base, "batch", refused=True),
            5,
        ]
        valkey.eval(ADD_SCRIPT, 0, *args)
        valkey.hset(f"demand:{before - 3}", field_of(base, "standard", refused=False), 20)
        found = read_demands(valkey).of(base)
        assert found.arrivals >= 2.0, "of whole seconds"
        assert read_demands(valkey).of("00" * 32).classes == {}
    answer = post(client, "demand", report(name), credential)
    assert answer.status_code == 200 and answer.json()["seconds"] == 10
    assert answer.json()["classes"]["standard"]["arrivals"] >= 2.0
    assert known(name) == [base]


@pytest.mark.parametrize("lie", ["none", "wrong", "other pool", "session", "revoked"])
def test_without_the_pools_own_credential_nothing_is_told_or_kept(
    client: Client, pool: tuple[str, str], base: str, lie: str
) -> None:
    name, credential = pool
    shown = {"none": "", "wrong": credential + "x", "session": "a" * 43}.get(lie, credential)
    asked = name
    if lie == "other pool":
        asked = f"other-{base[:8]}"
        issue_fleet_credential(pool=asked, terms=Terms(make_base(), "127.0.0.0/8"), replicas=1)
    if lie == "revoked":
        revoke_fleet(pool=name)
    answer = post(client, "demand", report(asked), shown)
    assert answer.status_code == 401 and answer.json()["error"]["code"] == "not_enrolled"
    assert known(asked) == []


@pytest.mark.parametrize(
    "changes", [{"wanted": -1}, {"ready_seconds": 0}, {"why": "x" * 101}, {"tenant": "acme"}, {"ready": "many"}]
)
def test_reports_that_are_none_are_refused(client: Client, pool: tuple[str, str], changes: dict[str, object]) -> None:
    name, credential = pool
    assert post(client, "demand", report(name, **changes), credential).status_code == 400
    assert known(name) == []


def test_without_the_counters_the_demand_is_unknown_and_not_nothing(
    client: Client, pool: tuple[str, str], settings: Any
) -> None:
    import dataclasses

    settings.ENV = dataclasses.replace(settings.ENV, valkey_url="redis://127.0.0.1:1/0")
    answer = post(client, "demand", report(pool[0]), pool[1])
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "demand_unknown"
