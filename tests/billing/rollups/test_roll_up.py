"""Each usage row and correction is counted once, in every sum, however late it commits and whoever is killed."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import UTC, date, datetime, timedelta

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction
from django.utils import timezone

from billing.hotpath import settle_hold
from billing.models import EarningsDay, RollupMark, RollupQueue, SpanTotal, SplitPart, UsageDay
from billing.rollups import sums as rollup_sums
from billing.rollups.checks import find_wrong_sums
from billing.rollups.earnings import balances, by_model, earnings, earnings_total, platform_totals
from billing.rollups.services import roll_up
from billing.rollups.usage import top_models, usage_summary
from billing.services import correct_prediction, refund_prediction_sync
from billing.splits import Part, split_id
from marketplace.accounts.models import ApiKey, Organization
from marketplace.accounts.services import create_api_key, rotate_api_key
from tests.billing.support import (
    USAGE_COST,
    charge,
    hold_request,
    hot_connection,
    insert_usage,
    make_organization,
    place,
    settle,
    split_of,
)
from tests.database import as_superuser

pytestmark = pytest.mark.django_db
EARNED = 35  # of USAGE_COST, at 8,000 basis points


def predict(buyer: Organization, creator: Organization, **changes: object) -> uuid.UUID:
    request = place(hold_request(buyer, creator, **changes))
    settle(request.prediction_id)
    return request.prediction_id


def sums() -> list[tuple[object, ...]]:
    """Everything that is counted, without the rows' own numbers."""
    tables = (UsageDay, EarningsDay, SpanTotal)
    return [
        tuple(value for name, value in sorted(row.items()) if name != "id")
        for table in tables
        for row in sorted(table.objects.values(), key=str)
    ]


def insert_past(buyer: Organization, creator: Organization, days_ago: int, model: int, cost: int = 100) -> None:
    insert_usage(
        prediction_id=uuid.uuid4(),
        created_at=datetime.now(UTC) - timedelta(days=days_ago),
        organization_id=buyer.pk,
        model_name=f"acme/{model}",
        model_id=uuid.UUID(int=model),
        creator_organization_id=creator.pk,
        prompt_tokens=10,
        cached_tokens=0,
        completion_tokens=5,
        input_micro_usd_per_mtok=1,
        output_micro_usd_per_mtok=1,
        cached_input_micro_usd_per_mtok=1,
        per_prediction_nano_usd=0,
        split_id=split_of(creator),
        cost_nano_usd=cost,
        finish_reason="stop",
        receipt="x",
    )


def test_a_prediction_is_counted_once_however_often_sums_are_made() -> None:
    buyer, creator = make_organization(10_000), make_organization()
    for _ in range(3):
        predict(buyer, creator)
    assert usage_summary(buyer) == [] and platform_totals().uncounted == 3
    assert (roll_up(rows_at_once=2), roll_up()) == (3, 0)
    (total,) = usage_summary(buyer, group_by=[])
    assert (total.predictions, total.cost_nano_usd, total.prompt_tokens) == (3, 3 * USAGE_COST, 300)
    assert earnings_total(creator).creator_nano_usd == 3 * EARNED
    assert (platform_totals().charged, platform_totals().earned) == (3 * USAGE_COST, 3 * EARNED)
    assert RollupMark.objects.get().complete_at <= timezone.now() and find_wrong_sums() == []


def test_a_roll_up_during_the_read_never_leaves_a_prediction_out(monkeypatch: pytest.MonkeyPatch) -> None:
    predict(make_organization(10_000), make_organization())
    read = rollup_sums.over_period

    def read_and_roll_up(*args: object) -> list[rollup_sums.Sums]:
        rows = read(*args)  # type: ignore[arg-type]
        roll_up()
        return rows

    monkeypatch.setattr(rollup_sums, "over_period", read_and_roll_up)
    found = platform_totals()
    assert (found.predictions, found.uncounted) == (0, 1)
    found = platform_totals()
    assert (found.predictions, found.uncounted) == (1, 0)


def test_a_refund_takes_cost_and_earnings_off_the_day_of_its_prediction() -> None:
    buyer, creator = make_organization(10_000), make_organization()
    given_back = predict(buyer, creator)
    predict(buyer, creator)
    roll_up()
    assert refund_prediction_sync(prediction_id=given_back, reason="never arrived")
    assert usage_summary(buyer, group_by=["day"])[0].cost_nano_usd == 2 * USAGE_COST
    roll_up()
    (day,) = usage_summary(buyer, group_by=["day"])
    assert (day.predictions, day.cost_nano_usd) == (2, USAGE_COST)
    found = earnings(creator)
    assert (found.total.predictions, found.total.creator_nano_usd, found.balances.net_nano_usd) == (2, EARNED, EARNED)
    assert (platform_totals().charged, platform_totals().earned) == (USAGE_COST, EARNED)
    assert find_wrong_sums() == []


def test_a_refund_that_is_counted_together_with_its_prediction_leaves_nothing_to_pay() -> None:
    buyer, creator = make_organization(10_000), make_organization()
    refund_prediction_sync(prediction_id=predict(buyer, creator), reason="never arrived")
    assert roll_up() == 2
    assert [(line.predictions, line.cost_nano_usd) for line in usage_summary(buyer)] == [(1, 0)]
    assert earnings_total(creator).creator_nano_usd == 0 and find_wrong_sums() == []


def test_each_part_of_a_price_that_is_given_back_is_taken_off() -> None:
    buyer, creator = make_organization(10_000), make_organization()
    prediction_id = predict(buyer, creator)
    roll_up()
    for amount, left in ((10, USAGE_COST - 10), (4, USAGE_COST - 14), (None, 0)):
        correct_prediction(prediction_id=prediction_id, reason="too slow", amount_nano_usd=amount)
        roll_up()
        (day,) = usage_summary(buyer, group_by=["day"])
        assert (day.predictions, day.cost_nano_usd) == (1, left)
        assert earnings_total(creator).charged_nano_usd == left
        assert earnings_total(creator).creator_nano_usd == balances(creator).net_nano_usd and find_wrong_sums() == []
    assert earnings_total(creator).creator_nano_usd == 0


def test_every_party_of_a_split_has_earnings() -> None:
    buyer, creator, upstream, friend = make_organization(10_000), *(make_organization() for _ in range(3))
    reason = SplitPart.Reason
    parts = (
        Part(creator.pk, 5_000, reason.CREATOR),
        Part(upstream.pk, 3_000, reason.UPSTREAM),
        Part(friend.pk, 1_000, reason.REFERRAL),
        Part(creator.pk, 500, reason.BLEND),
        Part(None, 500, reason.PLATFORM),
    )
    prediction_id = predict(buyer, creator, split_id=split_id(parts))
    roll_up()
    earned = {payee: earnings_total(payee).creator_nano_usd for payee in (creator, upstream, friend)}
    assert earned == {payee: balances(payee).net_nano_usd for payee in earned} and min(earned.values()) > 0
    rows = EarningsDay.objects.values_list("organization_id", "reason", "charged_nano_usd", "predictions")
    assert sorted(rows) == sorted(
        (payee.pk, why.value, USAGE_COST, 1)
        for payee, why in ((creator, reason.CREATOR), (upstream, reason.UPSTREAM), (friend, reason.REFERRAL))
    )
    assert platform_totals().earned == sum(earned.values())
    correct_prediction(prediction_id=prediction_id, reason="never arrived")
    roll_up()
    assert [earnings_total(payee).creator_nano_usd for payee in earned] == [0, 0, 0] and find_wrong_sums() == []


def test_a_free_prediction_is_counted_and_costs_nothing() -> None:
    buyer, creator = make_organization(10_000), make_organization()
    free = hold_request(buyer, creator).price.__class__(0, 0, 0)
    predict(buyer, creator, price=free, amount_nano_usd=0)
    roll_up()
    assert [(line.predictions, line.cost_nano_usd) for line in usage_summary(buyer)] == [(1, 0)]
    assert (earnings_total(creator).predictions, earnings_total(creator).creator_nano_usd) == (1, 0)
    assert find_wrong_sums() == []


def test_a_key_and_its_rotations_are_one_line() -> None:
    buyer, creator = make_organization(10_000), make_organization()
    first, _ = create_api_key(organization=buyer, name="service", scopes=["predict"], created_by=None)
    second, _ = rotate_api_key(key=first, created_by=None)
    for key in (first, second, None):
        predict(buyer, creator, api_key_id=key.pk if isinstance(key, ApiKey) else None)
    roll_up()
    by_key = {total.api_key_id: total.predictions for total in usage_summary(buyer, group_by=["key"])}
    assert by_key == {first.pk: 2, None: 1}
    assert {total.api_key_id: total.predictions for total in usage_summary(buyer)} == by_key


def test_every_grouping_and_period_is_that_of_the_predictions() -> None:
    buyer, other, creator = make_organization(), make_organization(), make_organization()
    made = [(days, model) for days in (0, 1, 6, 20, 63, 64, 90) for model in (1, 2) if (days + model) % 3]
    for days, model in made:
        insert_past(buyer, creator, days, model)
    insert_past(other, creator, 1, 1, cost=1_000)
    today = timezone.now().date()
    for since in (None, 0, 2, 30, 64, 120):
        period = {} if since is None else {"since": today - timedelta(days=since)}
        wanted = [(days, model) for days, model in made if since is None or days <= since]
        models = Counter(f"acme/{model}" for _, model in wanted)
        days = Counter(today - timedelta(days=ago) for ago, _ in wanted)
        assert {t.model_name: t.predictions for t in usage_summary(buyer, group_by=["model"], **period)} == models
        assert {t.day: t.predictions for t in usage_summary(buyer, group_by=["day"], **period)} == days
        assert len(usage_summary(buyer, group_by=["day", "model"], **period)) == len(wanted)
        assert len(usage_summary(buyer, **period)) == len(wanted)
        shared = any(ago <= 1 for ago, _ in wanted) and (since is None or since >= 1)
        assert earnings_total(creator, **period).predictions == len(wanted) + (since != 0)
        assert earnings_total(creator, **period).consumers == 1 + shared
    until = datetime.combine(today - timedelta(days=1), datetime.min.time(), tzinfo=UTC)
    assert usage_summary(buyer, group_by=[], until=until)[0].predictions == sum(days > 1 for days, _ in made)


def test_models_that_count_most_come_first_and_customers_are_counted_once() -> None:
    creator, buyers = make_organization(), [make_organization(), make_organization()]
    for model in (1, 2, 3):
        for buyer in buyers[: 1 + (model == 2)]:
            for days in (0, 5):
                insert_past(buyer, creator, days, model, cost=100 * model)
    found, count = by_model(creator, limit=2)
    assert [(line.model_name, line.consumers) for line in found] == [("acme/2", 2), ("acme/3", 1)] and count == 3
    recent = by_model(creator, since=date(2020, 1, 1))[0]
    assert {line.consumers for line in recent} == {None}
    dearest, used = top_models(buyers[0], since=timezone.now().date() - timedelta(days=30), limit=1)
    assert (dearest[0].model_name, used) == ("acme/3", 3)


def test_a_killed_call_counts_nothing_and_the_next_counts_all() -> None:
    buyer, creator = make_organization(10_000), make_organization()
    predict(buyer, creator)
    with connection.cursor() as cursor, transaction.atomic():
        cursor.execute("SELECT billing_roll_up(10)")
        assert cursor.fetchone() == (1,)
        transaction.set_rollback(True)
    assert sums() == [] and RollupQueue.objects.count() == 1
    assert roll_up() == 1 and find_wrong_sums() == []


@pytest.mark.django_db(transaction=True)
async def test_a_charge_that_commits_late_is_counted_when_it_is_there() -> None:
    buyer = await sync_to_async(make_organization)(10_000)
    creator = await sync_to_async(make_organization)()
    late, early = hold_request(buyer, creator), hold_request(buyer, creator)
    for request in (late, early):
        await sync_to_async(place)(request)
    # The late charge's transaction is older than that of the other, and commits after the other was counted.
    async with hot_connection() as conn, conn.transaction():
        await conn.execute("SELECT pg_current_xact_id()")
        await sync_to_async(settle)(early.prediction_id)
        assert await sync_to_async(roll_up)() == 1
        await settle_hold(conn, charge(late.prediction_id))
        assert await sync_to_async(roll_up)() == 0
    assert [await sync_to_async(roll_up)() for _ in range(2)] == [1, 0]
    (total,) = await sync_to_async(usage_summary)(buyer)
    assert (total.predictions, total.cost_nano_usd) == (2, 2 * USAGE_COST)
    assert await sync_to_async(find_wrong_sums)() == []
    await sync_to_async(connections.close_all)()  # of the thread that ran the ORM for this loop


@pytest.mark.parametrize(
    ("statement", "subject"),
    [
        ("UPDATE billing_usageday SET charged_nano_usd = charged_nano_usd + 1", "usage "),
        ("UPDATE billing_earningsday SET earned_nano_usd = earned_nano_usd - 1", "earnings "),
        (
            "UPDATE billing_spantotal SET predictions = predictions + 1 WHERE facet = 'usage_key' AND span = 16",
            "usage_key ",
        ),
        ("UPDATE billing_spantotal SET charged_nano_usd = 7 WHERE facet = 'platform'", "platform"),
        ("UPDATE billing_spantotal SET customers = 2 WHERE facet = 'earnings' AND span = 4", "earnings "),
        ("DELETE FROM billing_usageday", "usage "),
    ],
)
def test_a_wrong_sum_is_found(statement: str, subject: str) -> None:
    predict(make_organization(10_000), make_organization())
    roll_up()
    assert find_wrong_sums() == []
    with as_superuser(), connection.cursor() as cursor:
        cursor.execute(statement)
    assert any(found.subject.startswith(subject) for found in find_wrong_sums())
