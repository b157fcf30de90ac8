"""A hold whose answer broke off is settled from the journal, released, or left for later."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.utils import timezone

from billing.models import Hold
from marketplace.gateway.tasks import sweep_open_holds
from marketplace.vault.models import Replica
from tests.marketplace.gateway.conftest import FUNDS, UNTOUCHED, World, broken_stream, money

pytestmark = pytest.mark.asyncio

# The cost of two delivered tokens: 6 uncached and 4 cached prompt tokens, 2 output tokens, .5 µ$ a prediction.
TWO_TOKENS = 6 * 1000 + 4 * 100 + 2 * 3000 + 500


async def broken_prediction(world: World) -> dict[str, str]:
    """A stream that died after two tokens; the claims of its ticket."""
    await broken_stream(world)
    claims = world.replica.served[-1]
    assert (await money(world))["holds"] == ["open"]
    return claims


async def sweep() -> dict[str, int]:
    return await sync_to_async(sweep_open_holds)()


async def test_a_final_journal_entry_settles_what_was_delivered_once(world: World) -> None:
    claims = await broken_prediction(world)
    receipt = world.replica.receipt(claims, 2, "interrupted")
    world.replica.journal[claims["jti"]] = {"state": "final", "receipt": receipt}
    assert await sweep() == {"settled": 1, "released": 0, "left": 0}
    assert await sweep() == {"settled": 0, "released": 0, "left": 0}
    after = await money(world)
    assert after["posted"] == FUNDS - TWO_TOKENS and after["held"] == 0 and after["usage"] == 1
    assert after["sum"] == 0


async def test_a_newer_boot_of_the_replica_answers_for_the_one_that_died(world: World) -> None:
    claims = await broken_prediction(world)
    dead = world.replica.id

    def reboot() -> None:
        old = Replica.objects.get(id=dead)
        Replica.objects.filter(id=dead).update(url="http://127.0.0.1:9", gone_at=timezone.now())
        old.pk = world.replica.id = uuid.uuid4()
        old.registered_at = timezone.now()
        old.save(force_insert=True)

    await sync_to_async(reboot)()
    receipt = world.replica.receipt(claims, 2, "interrupted")
    world.replica.journal[claims["jti"]] = {"state": "final", "receipt": receipt}
    assert (await sweep())["settled"] == 1
    assert (await money(world))["posted"] == FUNDS - TWO_TOKENS


@sync_to_async
def as_if_the_gateway_had_been_killed(age: timedelta) -> None:
    """The hold is as old as `age` and far from its deadline: no gateway handed it to the sweeper."""
    now = timezone.now()
    with connection.cursor() as cursor:  # the hold's terms are frozen: only the superuser's tests may age it
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(
            "UPDATE billing_hold SET created_at = %s, expires_at = %s", [now - age, now + timedelta(minutes=5)]
        )
        cursor.execute("SET session_replication_role = origin")


async def test_after_the_gateway_was_killed_an_old_hold_is_settled_long_before_it_expires(world: World) -> None:
    claims = await broken_prediction(world)
    receipt = world.replica.receipt(claims, 2, "cancelled")
    world.replica.journal[claims["jti"]] = {"state": "final", "receipt": receipt}
    await as_if_the_gateway_had_been_killed(timedelta(seconds=5))
    assert (await sweep())["settled"] == 0, "a gateway may still be at work on a young hold"
    await as_if_the_gateway_had_been_killed(timedelta(seconds=15))
    assert (await sweep())["settled"] == 1
    assert (await money(world))["posted"] == FUNDS - TWO_TOKENS


async def test_a_hold_that_never_reached_a_replica_is_released_after_half_a_minute(world: World) -> None:
    await broken_prediction(world)
    await as_if_the_gateway_had_been_killed(timedelta(seconds=15))
    assert (await sweep())["left"] == 1
    await as_if_the_gateway_had_been_killed(timedelta(seconds=35))
    assert (await sweep())["released"] == 1
    assert await money(world) == UNTOUCHED | {"holds": ["released"]}


async def test_a_prediction_no_journal_knows_is_free(world: World) -> None:
    await broken_prediction(world)
    assert (await sweep())["released"] == 1
    assert await money(world) == UNTOUCHED | {"holds": ["released"]}


async def test_a_running_prediction_is_left_alone(world: World) -> None:
    claims = await broken_prediction(world)
    world.replica.journal[claims["jti"]] = {"state": "running", "receipt": None}
    assert (await sweep())["left"] == 1
    assert (await money(world))["holds"] == ["open"]


async def test_a_silent_replica_is_waited_for_but_not_for_ever(world: World) -> None:
    await broken_prediction(world)
    await world.replica.stop()
    assert (await sweep())["left"] == 1
    assert (await money(world))["holds"] == ["open"]
    await sync_to_async(Hold.objects.update)(expires_at=timezone.now() - timedelta(hours=2))
    assert (await sweep())["released"] == 1
    assert await money(world) == UNTOUCHED | {"holds": ["released"]}


async def test_a_forged_receipt_in_a_journal_moves_no_money(world: World) -> None:
    claims = await broken_prediction(world)
    world.replica.mode = "forged_receipt"
    receipt = world.replica.receipt(claims, 2_000_000)
    world.replica.journal[claims["jti"]] = {"state": "final", "receipt": receipt}
    assert (await sweep())["left"] == 1
    after = await money(world)
    assert after["posted"] == FUNDS and after["usage"] == 0
