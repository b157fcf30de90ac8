"""The writer: holds and charges in batches, the good ones of a bad batch, and a connection that is lost."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection as django_connection
from django.utils import timezone
from psycopg import AsyncConnection

from billing.errors import HoldNotFound, HoldReleased, InsufficientFunds
from billing.hotpath import Charge, HoldRequest, Settlement
from billing.models import Hold
from billing.pricing import Price, TokenUsage
from billing.services import release_hold_sync
from marketplace.gateway import writer as module
from marketplace.gateway.books import Books
from marketplace.gateway.writer import Writer
from protocol.receipts import Receipt
from tests.marketplace.gateway.conftest import FUNDS, World, money

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def writer(world: World) -> AsyncIterator[Writer]:
    writer = Writer(settings.ENV.database_url)
    yield writer
    await writer.close()


def terms(world: World, amount: int = 1_000) -> HoldRequest:
    return HoldRequest(
        prediction_id=uuid.uuid4(),
        organization_id=world.consumer.pk,
        api_key_id=world.key.pk,
        amount_nano_usd=amount,
        price=Price(1_000_000, 100_000, 3_000_000, 500),
        split_id=world.split_id,
        model_name="maker/thing",
        model_id=world.model.pk,
        version_id=world.version.pk,
        creator_organization_id=world.creator.pk,
        idempotency_key=None,
        request_hash=b"\0" * 32,
        expires_at=timezone.now() + timedelta(minutes=5),
        replica_id=world.replica.id,
        gateway_id=None,
        adapter="cd" * 32,
        base="ab" * 32,
        max_prompt_tokens=100,
        max_tokens=100,
    )


def charge(hold: HoldRequest, **changes: Any) -> Charge:
    usage = TokenUsage(prompt_tokens=10, cached_tokens=0, completion_tokens=5)
    return replace(Charge(hold.prediction_id, 1, usage, "stop", "receipt", hold.replica_id), **changes)


async def test_each_of_a_batch_gets_its_own_outcome(world: World, writer: Writer) -> None:
    good, poor = [terms(world) for _ in range(3)], terms(world, FUNDS + 1)
    answers = await asyncio.gather(*(writer.place(one) for one in (*good, poor)), return_exceptions=True)
    assert answers[:3] == [100] * 3 and isinstance(answers[3], InsufficientFunds)
    await sync_to_async(release_hold_sync)(prediction_id=good[1].prediction_id, reason="test")
    settled = await asyncio.gather(*(writer.settle(charge(one)) for one in (*good, poor)), return_exceptions=True)
    assert [type(one) for one in settled] == [Settlement, HoldReleased, Settlement, HoldNotFound]
    after = await money(world)
    assert sorted(after["holds"]) == ["released", "settled", "settled"]
    assert after["held"] == 0 and after["posted"] == FUNDS - 2_000 and after["usage"] == 2 and after["sum"] == 0


async def test_of_a_thousand_at_once_on_credit_for_400_exactly_400_are_charged(world: World, writer: Writer) -> None:
    each = FUNDS // 400
    holds = [replace(terms(world, each), price=Price(0, 0, 0, each)) for _ in range(1_000)]
    answers = await asyncio.gather(*(writer.place(one) for one in holds), return_exceptions=True)
    placed = [hold for hold, answer in zip(holds, answers, strict=True) if answer == 100]
    assert len(placed) == 400 and sum(isinstance(answer, InsufficientFunds) for answer in answers) == 600
    settled = await asyncio.gather(*(writer.settle(charge(one)) for one in placed))
    assert {one.cost for one in settled} == {each}
    after = await money(world)
    assert (after["posted"], after["held"], after["usage"], after["sum"]) == (0, 0, 400, 0)


async def test_a_hold_that_went_with_a_crash_of_the_database_is_placed_again_and_charged_once(
    world: World, writer: Writer
) -> None:
    books = Books(world.gateway._ready.parts.books.database, writer, uuid.uuid4())
    receipt = Receipt(
        jti=str(uuid.uuid4()),
        attempt=1,
        replica_id=str(world.replica.id),
        iat=1,
        adapter="cd" * 32,
        base="ab" * 32,
        prompt_tokens=10,
        cached_tokens=0,
        completion_tokens=5,
        finish_reason="stop",
        ttft_ms=1,
        duration_ms=2,
    )
    lost = terms(world)
    for _ in range(2):
        answer = await books.settle(lost, receipt, "receipt", attempt=1, replica_id=lost.replica_id)
        assert answer.cost == 1_000
    with pytest.raises(HoldNotFound):  # a later attempt was on disk, so this one is another's
        await books.settle(terms(world), receipt, "receipt", attempt=2, replica_id=lost.replica_id)
    after = await money(world)
    assert after["holds"] == ["settled"] and after["posted"] == FUNDS - 1_000 and after["usage"] == 1


async def test_one_bad_item_fails_alone(world: World, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model name that the database cannot store is a fault of this process, not of its neighbours in the batch."""
    good, bad = [terms(world) for _ in range(3)], replace(terms(world), model_name="nul\0")
    answers = await asyncio.gather(*(writer.place(one) for one in (good[0], bad, *good[1:])), return_exceptions=True)
    assert isinstance(answers[1], psycopg.Error) and answers[::2] == [100, 100] and answers[3] == 100
    assert (await money(world))["holds"] == ["open"] * 3


async def test_a_batch_whose_connection_is_lost_after_its_commit_is_sent_again_and_done_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = []

    def losing(statement: Any) -> Any:
        async def write(connection: AsyncConnection[Any], items: Sequence[Any]) -> Any:
            answers = await statement(connection, items)
            if statement not in lost:
                lost.append(statement)
                await connection.close()
                raise psycopg.OperationalError("the connection was lost")
            return answers

        return write

    for statement in ("place_holds", "settle_holds"):
        monkeypatch.setattr(module, statement, losing(getattr(module, statement)))
    writer = Writer(settings.ENV.database_url)
    holds = [terms(world), terms(world)]
    await asyncio.gather(*(writer.place(one) for one in holds))
    assert (await money(world))["held"] == 2_000
    answers = await asyncio.gather(*(writer.settle(charge(one)) for one in holds))
    assert len(lost) == 2 and [one.cost for one in answers] == [1_000, 1_000]
    after = await money(world)
    assert after["posted"] == FUNDS - 2_000 and after["held"] == 0 and after["usage"] == 2
    await writer.close()


async def test_a_database_that_ended_every_connection_is_connected_to_again(world: World, writer: Writer) -> None:
    await writer.place(terms(world))

    def end_all() -> None:
        with django_connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND usename = current_user"  # the tests log in as another one
            )

    await sync_to_async(end_all)()
    await writer.place(terms(world))
    assert (await money(world))["holds"] == ["open", "open"]


async def test_nothing_is_written_while_the_database_is_away_and_the_error_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECONNECT_SECONDS", 0.3)
    away = Writer("postgresql://nobody@127.0.0.1:9/none")
    answers = await asyncio.gather(*(away.place(terms(world)) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(answer, psycopg.OperationalError) for answer in answers)
    await away.close()
    assert await sync_to_async(Hold.objects.count)() == 0
