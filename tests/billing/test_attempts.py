"""A hold is bound to one attempt, a verdict bounds its charge, and a charge that never went out is given back once."""

from __future__ import annotations

import asyncio
import contextlib
import uuid

import pytest
from asgiref.sync import sync_to_async
from django.db import DatabaseError, connection, connections, transaction

from billing import selectors
from billing.errors import HoldReleased, OtherAttempt
from billing.hotpath import (
    gateway_beat,
    next_attempt,
    place_hold,
    record_delivery,
    refund_prediction,
    release_hold,
    settle_hold,
)
from billing.integrity import find_discrepancies
from billing.limited_keys import set_key_budget
from billing.models import BudgetNode, Correction, GatewayProcess, Hold, LedgerTransaction, Outbox, Usage
from billing.pricing import TokenUsage, cost_nano_usd
from billing.services import record_delivery_sync, refund_prediction_sync, reverse_transaction
from billing.statements import Settlement
from marketplace.accounts.models import ApiKey
from tests.billing.support import (
    PRICE,
    REPLICA,
    USAGE,
    USAGE_COST,
    charge,
    hold_request,
    hot_connection,
    hot_pool,
    make_organization,
)
from tests.billing.support import place as place_on_test_connection
from tests.billing.support import settle as settle_on_test_connection
from tests.database import as_owner

OTHER_REPLICA = uuid.UUID(int=4)


@pytest.fixture
def open_hold(db: None) -> Hold:
    buyer, creator = make_organization(10_000), make_organization()
    return Hold.objects.get(pk=place_on_test_connection(hold_request(buyer, creator)).prediction_id)


def one(sql: str, *parameters: object) -> object:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        (value,) = cursor.fetchone()
        return value


def move(hold: Hold, attempt: int, replica: uuid.UUID = OTHER_REPLICA) -> object:
    return one("SELECT billing_next_attempt(%s, %s, %s)", hold.pk, attempt, replica)


def wallet_of(hold: Hold) -> tuple[int, int]:
    hold.account.refresh_from_db()
    return hold.account.posted, hold.account.held


def assert_books_hold() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
    assert find_discrepancies() == []


def test_a_hold_keeps_the_grant_of_its_ticket_and_starts_at_attempt_one(open_hold: Hold) -> None:
    assert (open_hold.attempt, open_hold.replica_id, open_hold.base) == (1, REPLICA, "base")
    assert (open_hold.max_prompt_tokens, open_hold.max_tokens, open_hold.delivered_tokens) == (1_000, 1_000, None)


def test_an_attempt_moves_on_once_and_a_receipt_settles_its_own_attempt_alone(open_hold: Hold) -> None:
    assert move(open_hold, 1) is True
    assert move(open_hold, 1) is False, "attempt 1 is over"
    for attempt, replica in ((1, REPLICA), (1, OTHER_REPLICA), (2, REPLICA), (3, OTHER_REPLICA)):
        with pytest.raises(OtherAttempt):
            settle_on_test_connection(open_hold.pk, attempt=attempt, replica_id=replica)
    assert wallet_of(open_hold) == (10_000, 1_000) and Usage.objects.count() == 0
    assert settle_on_test_connection(open_hold.pk, attempt=2, replica_id=OTHER_REPLICA).cost == USAGE_COST
    with pytest.raises(OtherAttempt):
        settle_on_test_connection(open_hold.pk, attempt=1, replica_id=REPLICA)
    assert Usage.objects.get().replica_id == OTHER_REPLICA
    assert move(open_hold, 2) is False, "a closed hold has no next attempt"
    assert_books_hold()


def test_an_attempt_may_be_on_another_checkpoint_which_nothing_else_changes(open_hold: Hold) -> None:
    moved = "SELECT billing_next_attempt(%s, %s, %s, %s)"
    assert one(moved, open_hold.pk, 1, OTHER_REPLICA, "smaller") is True
    assert Hold.objects.values_list("attempt", "replica_id", "base").get() == (2, OTHER_REPLICA, "smaller")
    assert move(open_hold, 2, REPLICA) is True, "as gateways of the release before ask"
    assert Hold.objects.get().base == "smaller"
    with pytest.raises(DatabaseError, match="next attempt alone"), as_owner(), transaction.atomic():
        one("UPDATE billing_hold SET base = 'other' WHERE id = %s RETURNING true", open_hold.pk)


def test_a_verdict_bounds_the_charge_and_the_first_one_stands(open_hold: Hold) -> None:
    assert record_delivery_sync(prediction_id=open_hold.pk, attempt=2, tokens=9) == "other_attempt"
    assert record_delivery_sync(prediction_id=open_hold.pk, attempt=1, tokens=7) == "recorded"
    assert record_delivery_sync(prediction_id=open_hold.pk, attempt=1, tokens=50) == "recorded"
    assert record_delivery_sync(prediction_id=open_hold.pk, attempt=1, tokens=0) == "recorded"
    assert move(open_hold, 1) is False, "no other replica after a verdict"
    settlement = settle_on_test_connection(open_hold.pk)
    seven = cost_nano_usd(PRICE, TokenUsage(USAGE.prompt_tokens, USAGE.cached_tokens, 7))
    assert 0 < settlement.cost == seven < USAGE_COST
    assert Usage.objects.get().completion_tokens == 7
    assert record_delivery_sync(prediction_id=open_hold.pk, attempt=1, tokens=0) == "closed"
    assert wallet_of(open_hold) == (10_000 - seven, 0)
    assert_books_hold()


def test_a_verdict_above_the_receipt_charges_the_receipt(open_hold: Hold) -> None:
    record_delivery_sync(prediction_id=open_hold.pk, attempt=1, tokens=900)
    assert settle_on_test_connection(open_hold.pk).cost == USAGE_COST


def test_a_verdict_of_nothing_releases_at_once_and_a_later_receipt_charges_nothing(open_hold: Hold) -> None:
    assert record_delivery_sync(prediction_id=open_hold.pk, attempt=1, tokens=0) == "released"
    assert record_delivery_sync(prediction_id=open_hold.pk, attempt=1, tokens=5) == "closed"
    settlement = settle_on_test_connection(open_hold.pk)
    assert (settlement.cost, settlement.already_settled) == (0, True)
    open_hold.refresh_from_db()
    assert (open_hold.state, open_hold.delivered_tokens) == ("released", 0)
    assert wallet_of(open_hold) == (10_000, 0) and Usage.objects.count() == 0
    assert record_delivery_sync(prediction_id=uuid.uuid4(), attempt=1, tokens=5) == "closed"


def test_a_prompt_that_is_only_scored_is_paid_for_unless_it_was_not_delivered(db: None) -> None:
    buyer, creator = make_organization(10_000), make_organization()
    paid, lost = (place_on_test_connection(hold_request(buyer, creator, max_tokens=0)) for _ in range(2))
    scored = TokenUsage(100, 20, 0)
    assert settle_on_test_connection(paid.prediction_id, scored) == Settlement(14, already_settled=False)
    assert Usage.objects.get().completion_tokens == 0
    record_delivery_sync(prediction_id=lost.prediction_id, attempt=1, tokens=0)
    assert settle_on_test_connection(lost.prediction_id, scored).cost == 0
    assert_books_hold()


@pytest.mark.parametrize("usage", [TokenUsage(1_001, 0, 50), TokenUsage(100, 0, 1_001)], ids=["prompt", "completion"])
def test_the_database_refuses_usage_beyond_the_grant(open_hold: Hold, usage: TokenUsage) -> None:
    with pytest.raises(DatabaseError, match="beyond its grant"), transaction.atomic():
        settle_on_test_connection(open_hold.pk, usage)
    open_hold.refresh_from_db()
    assert open_hold.state == "open" and Usage.objects.count() == 0


def budgeted_hold(limit: int) -> tuple[Hold, ApiKey]:
    buyer, creator = make_organization(10_000), make_organization()
    key = ApiKey.objects.create(organization=buyer, name="k", prefix=uuid.uuid4().hex[:12], digest=b"0", scopes=[])
    set_key_budget(api_key=key, monthly_limit_nano_usd=limit, total_limit_nano_usd=limit)
    request = place_on_test_connection(hold_request(buyer, creator, api_key_id=key.pk))
    return Hold.objects.get(pk=request.prediction_id), key


def test_a_refund_reverses_the_charge_exactly_once_and_lowers_the_budget(db: None) -> None:
    hold, key = budgeted_hold(5_000)
    assert not refund_prediction_sync(prediction_id=hold.pk, reason="still open")
    settle_on_test_connection(hold.pk)
    assert BudgetNode.objects.get(api_key=key).spent_total_nano_usd == USAGE_COST
    assert refund_prediction_sync(prediction_id=hold.pk, reason="the answer never went out")
    assert not refund_prediction_sync(prediction_id=hold.pk, reason="again")
    assert wallet_of(hold) == (10_000, 0)
    budget = BudgetNode.objects.get(api_key=key)
    assert (budget.spent_total_nano_usd, budget.spent_this_month_nano_usd, budget.held_nano_usd) == (0, 0, 0)
    assert LedgerTransaction.objects.filter(kind="correction").count() == Correction.objects.count() == 1
    assert not Outbox.objects.exists(), "nobody is told of each correction"
    assert settle_on_test_connection(hold.pk) == Settlement(0, already_settled=True)
    assert_books_hold()


def test_the_refund_of_a_free_prediction_moves_nothing(db: None) -> None:
    buyer, creator = make_organization(), make_organization()
    free = {"amount_nano_usd": 0, "price": type(PRICE)(0, 0, 0)}
    request = place_on_test_connection(hold_request(buyer, creator, **free))
    settle_on_test_connection(request.prediction_id)
    assert refund_prediction_sync(prediction_id=request.prediction_id, reason="lost")
    assert LedgerTransaction.objects.count() == 0
    assert_books_hold()


def test_reversing_the_transaction_of_a_prediction_is_its_refund(open_hold: Hold) -> None:
    settle_on_test_connection(open_hold.pk)
    original = LedgerTransaction.objects.get(kind="prediction")
    reversal = reverse_transaction(transaction_id=original.pk, memo="a mistake of ours")
    assert reversal == reverse_transaction(transaction_id=original.pk, memo="again")
    assert reversal.corrects == original and Correction.objects.get().reason == "a mistake of ours"
    assert_books_hold()


@pytest.mark.django_db(transaction=True)
async def test_settlement_verdict_release_and_refund_at_once_leave_books_that_agree() -> None:

    buyer = await sync_to_async(make_organization)(1_000_000)
    creator = await sync_to_async(make_organization)()
    requests = [hold_request(buyer, creator) for _ in range(40)]

    async def settle(prediction_id: uuid.UUID) -> None:
        async with pool.connection() as conn:
            with contextlib.suppress(HoldReleased, OtherAttempt):
                await settle_hold(conn, charge(prediction_id))

    async def judge(number: int, prediction_id: uuid.UUID) -> None:
        async with pool.connection() as conn:
            match number % 4:
                case 0:
                    await record_delivery(conn, prediction_id, attempt=1, tokens=number)
                case 1:
                    await release_hold(conn, prediction_id, reason="refused")
                case 2:
                    await refund_prediction(conn, prediction_id, reason="not sent")
                case 3:
                    await next_attempt(conn, prediction_id, attempt=1, replica_id=OTHER_REPLICA, base="base")

    async with hot_pool(2) as pool:
        async with pool.connection() as conn:
            for request in requests:
                await place_hold(conn, request)
        for number, request in enumerate(requests):
            await asyncio.gather(settle(request.prediction_id), judge(number, request.prediction_id))

    def check() -> None:
        charged = Usage.objects.exclude(prediction_id__in=Correction.objects.values("prediction_id"))
        cost = sum(charged.values_list("cost_nano_usd", flat=True))
        held = 1_000 * Hold.objects.filter(state="open").count()
        assert selectors.wallet(buyer) == selectors.Wallet(1_000_000 - cost, held)
        assert find_discrepancies() == []
        connections.close_all()

    await sync_to_async(check)()


def age_gateways() -> None:
    with as_owner(), connection.cursor() as cursor:
        cursor.execute("UPDATE billing_gateway SET last_seen_at = now() - interval '25 hours'")
    connections.close_all()


@pytest.mark.django_db(transaction=True)
async def test_a_gateway_beats_and_the_rows_of_long_silent_ones_go() -> None:
    alive, silent = uuid.uuid4(), uuid.uuid4()
    async with hot_connection() as conn:
        await gateway_beat(conn, silent, host="elsewhere")
        await sync_to_async(age_gateways)()
        await gateway_beat(conn, alive, host="here")
        cursor = await conn.execute("SELECT last_seen_at FROM billing_gateway")
        rows = await cursor.fetchall()
        assert len(rows) == 1
        await gateway_beat(conn, alive, host="here")
    found = await GatewayProcess.objects.aget()
    assert (found.pk, found.host) == (alive, "here") and found.last_seen_at > rows[0][0]
