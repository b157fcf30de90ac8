"""A suspended organization makes no predictions, and nobody buys from one, within the seconds that caches live."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from marketplace.accounts.models import Organization
from marketplace.vault.identities import drain_replica
from marketplace.vault.models import Replica
from tests.marketplace.gateway.conftest import UNTOUCHED, World, money
from tests.marketplace.vault.factories import make_replica

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATH = "/v1/chat/completions"


async def answers(world: World, status: int) -> dict[str, object]:
    """Ask two seconds later, when the answer must have this status; return its error, or the answer."""
    world.let_pass(2)
    answer = await world.http.post(PATH, json=world.body())
    data = await answer.json()
    assert answer.status == status, data
    return data.get("error", data)


@sync_to_async
def suspend(organization: Organization, reason: str) -> None:
    at = timezone.now() if reason else None
    Organization.objects.filter(pk=organization.pk).update(suspended_at=at, suspension_reason=reason)


async def test_a_suspended_organization_makes_no_predictions(world: World) -> None:
    await suspend(world.consumer, "Chargebacks.")
    error = await answers(world, 403)
    assert error["code"] == "organization_suspended" and "Chargebacks" not in str(error["message"])
    assert (await (await world.http.get("/v1/models")).json())["error"]["code"] == "organization_suspended"
    assert {name: value for name, value in (await money(world)).items() if name in UNTOUCHED} == UNTOUCHED
    await suspend(world.consumer, "")
    await answers(world, 200)


async def test_nobody_buys_from_a_suspended_creator(world: World) -> None:
    assert [row["id"] for row in (await (await world.http.get("/v1/models")).json())["data"]] == ["maker/thing"]
    await suspend(world.creator, "Stolen weights.")
    assert (await answers(world, 403))["code"] == "model_off_sale"
    assert (await (await world.http.get("/v1/models")).json())["data"] == []


@sync_to_async
def drain() -> None:
    """Enrol the scripted replica, whose boot is there, and drain it."""
    Replica.objects.filter(pk=make_replica("scripted").replica.pk).delete()
    drain_replica(name="scripted")


async def test_a_drained_replica_gets_no_prediction(world: World) -> None:
    await drain()
    assert (await answers(world, 503))["code"] == "no_replica"
    assert world.replica.served == []
