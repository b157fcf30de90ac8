"""Holds and settlements: never overdrawn, never charged twice, all or nothing."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import sync_to_async

from billing import selectors
from billing.errors import BudgetExceeded, DuplicateRequest, HoldNotFound, HoldReleased, InsufficientFunds
from billing.hotpath import expire_hold, place_hold, release_hold, settle_hold
from billing.integrity import find_discrepancies
from billing.limited_keys import set_key_budget
from billing.models import Account, BudgetNode, Entry, Hold, LedgerTransaction, Outbox, Usage
from billing.pricing import Price, TokenUsage
from billing.rollups.services import roll_up
from billing.services import release_hold_sync
from marketplace.accounts.models import ApiKey, Organization
from tests.billing import support
from tests.billing.support import (
    REPLICA,
    USAGE,
    USAGE_COST,
    charge,
    hold_request,
    hot_connection,
    hot_pool,
    make_organization,
    split_of,
)
from tests.database import as_owner

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("thread_connection_closed")]
NOTHING = TokenUsage(prompt_tokens=100, cached_tokens=0, completion_tokens=0)


def move_budgets_to_2020() -> None:
    with as_owner():
        BudgetNode.objects.update(month=datetime(2020, 1, 1, tzinfo=UTC).date())


make_organization_async = sync_to_async(make_organization)
wallet = sync_to_async(selectors.wallet)


@sync_to_async
def balances() -> dict[str, int]:
    """Every balance but that of promotions, by kind."""
    return dict(Account.objects.exclude(kind="promotion").values_list("kind", "posted"))


def make_key(organization: Organization) -> ApiKey:
    return ApiKey.objects.create(
        organization=organization, name="k", prefix=uuid.uuid4().hex[:12], digest=b"0" * 32, scopes=["predict"]
    )


async def settle(conn, prediction_id, usage=USAGE):
    return await settle_hold(conn, charge(prediction_id, usage))


@pytest.mark.parametrize(("requests", "covered"), [(200, 80), pytest.param(1_000, 400, marks=pytest.mark.deep)])
async def test_of_parallel_requests_exactly_those_are_approved_that_credit_covers(requests: int, covered: int) -> None:
    buyer = await make_organization_async(covered * 1_000)
    creator = await make_organization_async()

    async with hot_pool(20) as pool:

        async def attempt(number: int) -> str:
            async with pool.connection() as conn:
                try:
                    await place_hold(conn, hold_request(buyer, creator))
                except InsufficientFunds as error:
                    assert error.available < 1_000 and error.needed == 1_000
                    return "refused"
                return "approved"

        outcomes = Counter(await asyncio.gather(*(attempt(number) for number in range(requests))))

    assert outcomes == {"approved": covered, "refused": requests - covered}
    assert await wallet(buyer) == selectors.Wallet(posted=covered * 1_000, held=covered * 1_000)
    assert await Hold.objects.acount() == covered
    assert await sync_to_async(find_discrepancies)() == []


@pytest.mark.parametrize("predictions", [60, pytest.param(1_000, marks=pytest.mark.deep)])
async def test_parallel_predictions_of_many_customers_leave_books_that_add_up(predictions: int) -> None:
    organizations = [await make_organization_async(1_000 * predictions) for _ in range(5)]

    async with hot_pool(16) as pool:

        async def settle_in_pool(prediction_id: uuid.UUID):
            async with pool.connection() as conn:
                return await settle(conn, prediction_id)

        async def predict(number: int) -> int:
            # Everyone buys from everyone, so settlements cross in every direction.
            request = hold_request(organizations[number % 5], organizations[number * 7 % 5])
            async with pool.connection() as conn:
                await place_hold(conn, request)
                if number % 10 == 0:
                    await release_hold(conn, request.prediction_id, reason="refused")
                    return 0
            # The gateway and the sweeper at the same moment.
            both = await asyncio.gather(settle_in_pool(request.prediction_id), settle_in_pool(request.prediction_id))
            assert sorted(settlement.already_settled for settlement in both) == [False, True]
            return both[0].cost

        costs = await asyncio.gather(*(predict(number) for number in range(predictions)))

    await sync_to_async(roll_up)()
    summary = await sync_to_async(selectors.platform_summary)()
    settled = predictions * 9 // 10
    assert sum(costs) == settled * USAGE_COST == summary.charged == summary.creator + summary.platform
    assert (summary.predictions, summary.open_holds, summary.ledger_sum) == (settled, 0, 0)
    assert await sync_to_async(find_discrepancies)() == []


async def test_settling_pays_creator_and_platform_and_gives_the_rest_back() -> None:
    buyer, creator = await make_organization_async(5_000), await make_organization_async()
    request = hold_request(buyer, creator)
    async with hot_connection() as conn:
        placed = await place_hold(conn, request)
        settlement = await settle(conn, request.prediction_id)

    assert placed.available_nano_usd == 4_000
    assert settlement.cost == USAGE_COST
    assert await balances() == {"customer_credit": 5_000 - USAGE_COST, "creator_reserve": 35, "platform_revenue": 9}
    assert not settlement.already_settled
    assert await wallet(buyer) == selectors.Wallet(posted=5_000 - USAGE_COST, held=0)
    usage = await Usage.objects.aget(prediction_id=request.prediction_id)
    assert (usage.cost_nano_usd, usage.split_id, usage.attempt) == (USAGE_COST, request.split_id, 1)
    assert (usage.receipt, usage.finish_reason, usage.replica_id) == ("receipt", "stop", REPLICA)
    assert not await Outbox.objects.aexists(), "nobody is told of each settlement"


async def test_settling_twice_charges_once() -> None:
    buyer, creator = await make_organization_async(5_000), await make_organization_async()
    request = hold_request(buyer, creator)
    async with hot_connection() as conn:
        await place_hold(conn, request)
        first = await settle(conn, request.prediction_id)
        more = TokenUsage(prompt_tokens=100, cached_tokens=0, completion_tokens=90)
        second = await settle(conn, request.prediction_id, more)

    assert second.already_settled and second.cost == first.cost
    assert (await wallet(buyer)).posted == 5_000 - USAGE_COST
    assert await Usage.objects.acount() == 1
    assert await LedgerTransaction.objects.filter(kind="prediction").acount() == 1


async def test_a_prediction_never_costs_more_than_its_hold() -> None:
    buyer, creator = await make_organization_async(5_000), await make_organization_async()
    request = hold_request(buyer, creator, amount_nano_usd=40)
    async with hot_connection() as conn:
        await place_hold(conn, request)
        assert (await settle(conn, request.prediction_id)).cost == 40


async def test_a_prediction_that_delivered_nothing_is_free() -> None:
    buyer, creator = await make_organization_async(5_000), await make_organization_async()
    request = hold_request(buyer, creator, price=Price(1, 1, 1, per_prediction_nano_usd=500))
    async with hot_connection() as conn:
        await place_hold(conn, request)
        first, again = (
            await settle(conn, request.prediction_id, NOTHING),
            await settle(conn, request.prediction_id, NOTHING),
        )

    assert (first.cost, first.already_settled, again.already_settled) == (0, False, True)
    assert await wallet(buyer) == selectors.Wallet(posted=5_000, held=0)
    assert (await Hold.objects.aget()).state == "released"
    assert await Usage.objects.acount() == 0
    assert await LedgerTransaction.objects.filter(kind="prediction").acount() == 0


async def test_usage_that_arrives_after_the_release_charges_nothing() -> None:
    buyer, creator = await make_organization_async(5_000), await make_organization_async()
    request = hold_request(buyer, creator)
    async with hot_connection() as conn:
        await place_hold(conn, request)
        assert await release_hold(conn, request.prediction_id, reason="refused")
        assert not await release_hold(conn, request.prediction_id, reason="refused")
        with pytest.raises(HoldReleased):
            await settle(conn, request.prediction_id)
    assert await wallet(buyer) == selectors.Wallet(posted=5_000, held=0)
    assert await Usage.objects.acount() == 0


async def test_releasing_after_settling_gives_nothing_back() -> None:
    buyer, creator = await make_organization_async(5_000), await make_organization_async()
    request = hold_request(buyer, creator)
    async with hot_connection() as conn:
        await place_hold(conn, request)
        await settle(conn, request.prediction_id)
        assert not await release_hold(conn, request.prediction_id, reason="late")
    assert await wallet(buyer) == selectors.Wallet(posted=5_000 - USAGE_COST, held=0)


async def test_a_free_model_writes_usage_but_moves_no_money() -> None:
    buyer, creator = await make_organization_async(), await make_organization_async()
    request = hold_request(buyer, creator, amount_nano_usd=0, price=Price(0, 0, 0, 0))
    async with hot_connection() as conn:
        await place_hold(conn, request)
        assert (await settle(conn, request.prediction_id)).cost == 0
    assert await Usage.objects.acount() == 1
    assert await Entry.objects.acount() == 0


async def test_the_whole_share_may_go_to_either_side() -> None:
    buyer, creator = await make_organization_async(5_000), await make_organization_async()
    async with hot_connection() as conn:
        for creator_bps in (0, 10_000):
            split = await sync_to_async(split_of)(creator, creator_bps)
            request = hold_request(buyer, creator, split_id=split)
            await place_hold(conn, request)
            await settle(conn, request.prediction_id)
    found = await balances()
    assert (found["creator_reserve"], found["platform_revenue"]) == (USAGE_COST, USAGE_COST)
    assert (await sync_to_async(selectors.platform_summary)()).ledger_sum == 0


async def test_an_organization_without_account_has_nothing_to_spend() -> None:
    creator = await make_organization_async()
    stranger = Organization(slug="stranger", name="stranger")
    async with hot_connection() as conn:
        with pytest.raises(InsufficientFunds) as refused:
            await place_hold(conn, hold_request(stranger, creator))
        with pytest.raises(HoldNotFound):
            await settle(conn, uuid.uuid4())
        assert not await release_hold(conn, uuid.uuid4(), reason="unknown")
    assert refused.value.available == 0
    assert await Hold.objects.acount() == 0


async def test_an_idempotency_key_is_used_once_and_tells_a_retry_from_a_conflict() -> None:
    buyer, creator = await make_organization_async(5_000), await make_organization_async()
    first = hold_request(buyer, creator, idempotency_key="k1")
    async with hot_connection() as conn:
        await place_hold(conn, first)
        with pytest.raises(DuplicateRequest) as retry:
            await place_hold(conn, hold_request(buyer, creator, idempotency_key="k1"))
        await settle_hold(conn, charge(first.prediction_id, answer=b"encrypted"))
        other = hashlib.sha256(b"another body").digest()
        with pytest.raises(DuplicateRequest) as conflict:
            await place_hold(conn, hold_request(buyer, creator, idempotency_key="k1", request_hash=other))
        with pytest.raises(DuplicateRequest):  # the same prediction id
            await place_hold(conn, first)
        # Another customer's keys are their own.
        stranger = await make_organization_async(5_000)
        await place_hold(conn, hold_request(stranger, creator, idempotency_key="k1"))

    assert (retry.value.prediction_id, retry.value.state, retry.value.same_body) == (first.prediction_id, "open", True)
    assert (conflict.value.state, conflict.value.same_body) == ("settled", False)
    assert (await wallet(buyer)).held == 0
    assert await Hold.objects.filter(organization_id=buyer.pk).acount() == 1


async def test_a_request_that_was_refused_leaves_its_key_free_for_another_body() -> None:
    buyer, creator = await make_organization_async(5_000), await make_organization_async()
    first = hold_request(buyer, creator, idempotency_key="k1")
    other = hashlib.sha256(b"another body").digest()
    async with hot_connection() as conn:
        await place_hold(conn, first)
        with pytest.raises(DuplicateRequest):
            await place_hold(conn, hold_request(buyer, creator, idempotency_key="k1", request_hash=other))
        await release_hold(conn, first.prediction_id, reason="refused")
        await place_hold(conn, hold_request(buyer, creator, idempotency_key="k1", request_hash=other))
    assert (await wallet(buyer)).held == 1_000


async def test_a_released_request_may_be_tried_again_under_its_key_with_the_same_body_only() -> None:
    buyer, creator = await make_organization_async(5_000), await make_organization_async()
    first = hold_request(buyer, creator, idempotency_key="k1")
    async with hot_connection() as conn:
        await place_hold(conn, first)
        await release_hold(conn, first.prediction_id, reason="lost while answering")
        other = hashlib.sha256(b"another body").digest()
        with pytest.raises(DuplicateRequest) as conflict:
            await place_hold(conn, hold_request(buyer, creator, idempotency_key="k1", request_hash=other))
        await place_hold(conn, hold_request(buyer, creator, idempotency_key="k1"))
    assert (conflict.value.state, conflict.value.same_body) == ("released", False)
    assert (await wallet(buyer)).held == 1_000


async def test_a_hundred_parallel_requests_with_one_key_place_one_hold() -> None:
    buyer, creator = await make_organization_async(1_000_000), await make_organization_async()
    async with hot_pool(10) as pool:

        async def attempt() -> bool:
            async with pool.connection() as conn:
                try:
                    await place_hold(conn, hold_request(buyer, creator, idempotency_key="same"))
                except DuplicateRequest:
                    return False
                return True

        assert sum(await asyncio.gather(*(attempt() for _ in range(100)))) == 1
    assert (await wallet(buyer)).held == 1_000


async def test_parallel_requests_never_exceed_the_budget_of_their_key() -> None:
    buyer, creator = await make_organization_async(1_000_000), await make_organization_async()
    key = await sync_to_async(make_key)(buyer)
    await sync_to_async(set_key_budget)(api_key=key, monthly_limit_nano_usd=25_500, total_limit_nano_usd=None)
    async with hot_pool(10) as pool:

        async def attempt() -> bool:
            async with pool.connection() as conn:
                try:
                    await place_hold(conn, hold_request(buyer, creator, api_key_id=key.pk))
                except BudgetExceeded as error:
                    assert (error.limit, error.needed) == (25_500, 1_000)
                    return False
                return True

        assert sum(await asyncio.gather(*(attempt() for _ in range(60)))) == 25
    assert (await BudgetNode.objects.aget()).held_nano_usd == 25_000
    assert (await wallet(buyer)).held == 25_000
    assert await sync_to_async(find_discrepancies)() == []


async def test_a_budget_counts_what_was_spent_and_starts_again_each_month() -> None:
    buyer, creator = await make_organization_async(1_000_000), await make_organization_async()
    key = await sync_to_async(make_key)(buyer)
    limits = {"monthly_limit_nano_usd": 1_040, "total_limit_nano_usd": 2_000}
    await sync_to_async(set_key_budget)(api_key=key, **limits)
    async with hot_connection() as conn:

        async def predict() -> None:
            request = hold_request(buyer, creator, api_key_id=key.pk)
            await place_hold(conn, request)
            await settle(conn, request.prediction_id)

        await predict()
        with pytest.raises(BudgetExceeded) as refused:
            await predict()
        assert (refused.value.limit, refused.value.spent) == (1_040, USAGE_COST)

        await sync_to_async(move_budgets_to_2020)()
        await predict()
    budget = await BudgetNode.objects.aget()
    assert (budget.spent_this_month_nano_usd, budget.spent_total_nano_usd) == (USAGE_COST, 2 * USAGE_COST)
    assert budget.held_nano_usd == 0
    assert budget.month.replace(day=1) == datetime.now(UTC).date().replace(day=1)


async def test_the_sweeper_sees_expired_holds_with_their_replica_and_closes_them_with_the_same_statements() -> None:
    buyer, creator = await make_organization_async(10_000), await make_organization_async()
    past = datetime.now(UTC) - timedelta(seconds=1)
    replica = uuid.uuid4()
    stale = hold_request(buyer, creator, expires_at=past, replica_id=replica)
    lost = hold_request(buyer, creator, expires_at=past, replica_id=replica)
    live, handed_over = hold_request(buyer, creator), hold_request(buyer, creator)
    async with hot_connection() as conn:
        for request in (stale, lost, live, handed_over):
            await place_hold(conn, request)
        assert await expire_hold(conn, handed_over.prediction_id)
        assert not await expire_hold(conn, handed_over.prediction_id)

    found = await sync_to_async(selectors.holds_to_sweep)(limit=10)
    expired = {one.hold.pk: one.hold.replica_id for one in found}
    assert expired == {stale.prediction_id: replica, lost.prediction_id: replica, handed_over.prediction_id: REPLICA}
    settlement = await sync_to_async(support.settle)(stale.prediction_id, replica_id=replica)
    assert settlement.cost == USAGE_COST
    assert await sync_to_async(release_hold_sync)(prediction_id=lost.prediction_id, reason="unknown to the journal")
    assert (await Hold.objects.aget(pk=lost.prediction_id)).close_reason == "unknown to the journal"
    assert (await wallet(buyer)).held == 2_000


async def test_a_price_change_does_not_touch_a_prediction_in_flight() -> None:
    # The hold carries its own price: settling takes no price at all.
    buyer, creator = await make_organization_async(5_000), await make_organization_async()
    cheap, dear = hold_request(buyer, creator), hold_request(buyer, creator, price=Price(1_000, 1_000, 1_000))
    async with hot_connection() as conn:
        await place_hold(conn, cheap)
        await place_hold(conn, dear)
        assert (await settle(conn, cheap.prediction_id)).cost == USAGE_COST
        assert (await settle(conn, dear.prediction_id)).cost == 150


async def test_a_connection_that_is_not_in_autocommit_mode_is_refused() -> None:
    buyer, creator = await make_organization_async(5_000), await make_organization_async()
    async with hot_connection() as conn:
        await conn.set_autocommit(False)
        with pytest.raises(RuntimeError):
            await place_hold(conn, hold_request(buyer, creator))
    assert await Hold.objects.acount() == 0


async def test_the_reasons_a_replica_gives_are_cut_instead_of_failing_the_settlement() -> None:
    buyer, creator = await make_organization_async(5_000), await make_organization_async()
    request = hold_request(buyer, creator)
    async with hot_connection() as conn:
        await place_hold(conn, request)
        settlement = await settle_hold(conn, charge(request.prediction_id, finish_reason="x" * 500))
    assert settlement.cost == USAGE_COST
    assert (await Usage.objects.aget()).finish_reason == "x" * 32
