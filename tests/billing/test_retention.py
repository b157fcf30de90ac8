"""Single predictions of long ago are dropped only when nothing needs them; sums, papers and corrections stay right."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import psycopg
import pytest
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from billing import tasks
from billing.integrity import find_discrepancies
from billing.ledger import record_incident
from billing.models import (
    Account,
    Dispute,
    DroppedUsage,
    Entry,
    Hold,
    Incident,
    LedgerTransaction,
    Paper,
    RollupQueue,
    TopUp,
    Usage,
)
from billing.papers.consumption import consumed, earned
from billing.papers.monthly import issue_month
from billing.periods import close_month, post_entries
from billing.retention import details_kept_since, drop_old_usage, drop_usage
from billing.rollups.checks import find_wrong_sums
from billing.rollups.services import roll_up
from billing.rollups.usage import usage_summary
from billing.selectors import usage_rows, wallet
from billing.services import correct_prediction
from marketplace.config.env import Env, EnvError
from marketplace.receipts import services as receipts
from marketplace.receipts.errors import NoReceipt
from marketplace.receipts.selectors import receipt_document
from marketplace.vault import services as vault
from tests.billing.papers.support import make_platform
from tests.billing.support import USAGE_COST, conninfo, hold_request, make_organization, place
from tests.database import as_superuser, behind_the_triggers
from tests.marketplace.receipts.conftest import Market, move
from tests.marketplace.vault.factories import make_replica

pytestmark = pytest.mark.django_db


def month_ago(months: int) -> date:
    today = timezone.now().date()
    number = today.year * 12 + today.month - 1 - months
    return date(number // 12, number % 12 + 1, 1)


OLD = month_ago(26)
BEFORE, AFTER = month_ago(27), month_ago(25)


def at(month: date, day: int = 10) -> datetime:
    return datetime(month.year, month.month, day, 12, tzinfo=UTC)


def sell(market: Market, moment: datetime) -> uuid.UUID:
    """A charge of that time, in the partition of its month, in the sums and postings of its time."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT billing_create_usage_partition(%s)", [moment.date()])
    charge = market.charge(moment)
    with behind_the_triggers() as cursor:
        cursor.execute(
            "UPDATE billing_ledgertransaction SET created_at = %s WHERE kind = 'prediction' AND reference = %s",
            [moment, str(charge.prediction_id)],
        )
        RollupQueue.objects.filter(prediction_id=charge.prediction_id).update(settled_at=moment)
    return charge.prediction_id


def close() -> None:
    post_entries()
    for month in (BEFORE, OLD, AFTER):
        close_month(month=month, closed_by="test")


def finish() -> None:
    """All that has to be done with the months of long ago."""
    close()
    for month in (BEFORE, OLD, AFTER):
        issue_month(month)
    roll_up()
    for day in {moment.date() for moment in Usage.objects.values_list("created_at", flat=True)}:
        receipts.grow(day)
        receipts.publish(day)


@pytest.fixture
def market(db: None) -> Market:
    vault.bootstrap_platform_keys()
    make_platform()
    return Market(make_organization(10**9), make_organization(), make_replica())


@pytest.fixture
def old(market: Market) -> list[uuid.UUID]:
    """Two charges of the month to drop, and one of the next month; the months are closed in every way."""
    charges = [sell(market, at(OLD)), sell(market, at(OLD, 20)), sell(market, at(AFTER))]
    finish()
    return charges


def test_a_finished_month_is_dropped_and_its_sums_papers_and_balances_stay(
    market: Market, old: list[uuid.UUID]
) -> None:
    total = usage_summary(market.buyer, group_by=["model"])
    entries = list(Entry.objects.order_by("id").values_list("id", "amount"))
    invoice = Paper.objects.get(kind="invoice", organization=market.buyer, period=OLD)
    assert len(usage_rows(market.buyer)) == 3 and details_kept_since() is None

    assert drop_usage(OLD) == "dropped"

    assert [row.prediction_id for row in usage_rows(market.buyer)] == [old[2]]
    assert details_kept_since() == AFTER
    dropped = DroppedUsage.objects.get()
    assert (dropped.month, dropped.predictions, dropped.cost_nano_usd) == (OLD, 2, 2 * USAGE_COST)
    assert usage_summary(market.buyer, group_by=["model"]) == total
    assert list(Entry.objects.order_by("id").values_list("id", "amount")) == entries
    assert Hold.objects.filter(pk__in=old, state="settled").count() == 3
    assert find_discrepancies() == [] and find_wrong_sums() == []
    assert issue_month(OLD) == 2 and Paper.objects.get(pk=invoice.pk).content == invoice.content
    with pytest.raises(NoReceipt, match=f"before {AFTER:%Y-%m-%d} are not kept"):
        receipt_document(market.buyer, old[0])
    with pytest.raises(NoReceipt, match="no receipt of this number"):  # a stranger learns nothing
        receipt_document(make_organization(), old[0])
    assert drop_usage(OLD) == "no_partition" and DroppedUsage.objects.count() == 1


def test_a_prediction_of_a_dropped_month_can_still_be_corrected_and_papers_name_it(
    market: Market, old: list[uuid.UUID]
) -> None:
    assert drop_usage(OLD) == "dropped"
    before = wallet(market.buyer).posted

    assert correct_prediction(prediction_id=old[0], reason="wrong answer", amount_nano_usd=20) == 20
    roll_up()
    post_entries()

    assert wallet(market.buyer).posted == before + 20
    assert find_discrepancies() == [] and find_wrong_sums() == []
    days = {total.day: total.cost_nano_usd for total in usage_summary(market.buyer, group_by=["day"])}
    assert days[at(OLD).date()] == USAGE_COST - 20
    (line,) = consumed(market.buyer, timezone.now().date().replace(day=1))
    assert (line.model, line.predictions, line.prompt_tokens) == ("acme/triage", 0, 0)
    assert (line.charged_nano_usd, line.given_back_nano_usd) == (0, 20)
    (line,) = earned(market.seller, timezone.now().date().replace(day=1))
    assert (line.model, line.predictions, line.paid_nano_usd, line.earned_nano_usd) == ("acme/triage", 0, -20, -16)


def open_incident(market: Market, old: list[uuid.UUID]) -> None:
    record_incident(kind=Incident.Kind.CHARGE_MISMATCH, subject="x", detail={})


def open_dispute(market: Market, old: list[uuid.UUID]) -> None:
    top_up = TopUp.objects.create(
        organization=market.buyer,
        amount_cents=500,
        state=TopUp.State.CREDITED,
        credited_at=at(BEFORE),
        ledger_transaction=LedgerTransaction.objects.get(kind="promotion"),
    )
    Dispute.objects.create(id="dp_1", top_up=top_up, amount_cents=500, reason="fraudulent", status="needs_response")


def open_hold(market: Market, old: list[uuid.UUID]) -> None:
    hold = place(hold_request(market.buyer, market.seller))
    connection.check_constraints()
    with behind_the_triggers():
        Hold.objects.filter(pk=hold.prediction_id).update(created_at=at(OLD))


def uncounted_correction(market: Market, old: list[uuid.UUID]) -> None:
    correct_prediction(prediction_id=old[0], reason="late")


def late_charge(market: Market, old: list[uuid.UUID]) -> None:
    """A charge that became visible after its month was closed: the open month's papers still need it."""
    sell(market, at(OLD, 21))
    roll_up()
    post_entries()


def changed_sum(market: Market, old: list[uuid.UUID]) -> None:
    with as_superuser(), connection.cursor() as cursor:
        cursor.execute(
            "UPDATE billing_usageday SET completion_tokens = completion_tokens + 1 WHERE day = %s", [at(OLD).date()]
        )


def late_leaf(market: Market, old: list[uuid.UUID]) -> None:
    with behind_the_triggers() as cursor:
        cursor.execute("DELETE FROM receipts_head WHERE day = %s", [at(OLD).date()])


NEEDS: tuple[tuple[Callable[[Market, list[uuid.UUID]], None], str], ...] = (
    (open_incident, "incident"),
    (open_dispute, "dispute"),
    (open_hold, "open_hold"),
    (uncounted_correction, "queued"),
    (late_charge, "not_posted"),
    (changed_sum, "wrong_sums"),
    (late_leaf, "not_proven"),
)


def test_a_month_that_something_still_needs_is_kept(market: Market, old: list[uuid.UUID]) -> None:
    for happens, outcome in NEEDS:
        with transaction.atomic():
            happens(market, old)
            rows = Usage.objects.count()
            assert drop_usage(OLD) == outcome, happens.__name__
            assert Usage.objects.count() == rows and not DroppedUsage.objects.exists()
            transaction.set_rollback(True)
    assert drop_usage(OLD) == "dropped", "nothing else needed it"


def test_a_month_is_kept_until_its_sums_papers_and_trees_are_there(market: Market) -> None:
    sell(market, at(OLD))
    close()
    for missing, make in (
        ("queued", roll_up),
        ("no_papers", lambda: issue_month(OLD)),
        ("not_proven", lambda: call_command("publish_receipts", f"{OLD:%Y-%m}", verbosity=0)),
    ):
        assert drop_usage(OLD) == missing and Usage.objects.count() == 1
        make()
    assert drop_usage(OLD) == "dropped" and not Usage.objects.exists()


def test_young_open_and_odd_months_are_kept(market: Market) -> None:
    sell(market, at(OLD))
    sell(market, at(month_ago(13)))
    assert drop_usage(OLD) == "month_open"
    assert drop_usage(month_ago(13)) == "too_young"
    assert drop_usage(timezone.now().date().replace(day=1)) == "too_young"
    assert drop_usage(OLD + timedelta(days=1)) == "not_a_month"
    assert Usage.objects.count() == 2


def test_the_task_drops_what_is_older_than_the_setting_says_and_nothing_if_all_is_kept(
    market: Market, old: list[uuid.UUID], settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.ENV = _env(USAGE_MONTHS_KEPT="0")
    tasks.drop_usage()
    assert Usage.objects.count() == 3
    settings.ENV = _env(USAGE_MONTHS_KEPT="26")  # OLD is the oldest of 26 whole months
    tasks.drop_usage()
    assert Usage.objects.count() == 3
    settings.ENV = _env()
    tasks.drop_usage()
    assert Usage.objects.count() == 1 and details_kept_since() == AFTER
    assert drop_old_usage(months_kept=13) == {AFTER: "dropped"}
    assert "warning" not in caplog.text.lower()


def _env(**changes: str) -> Env:
    return Env.load(dict(os.environ) | changes)


@pytest.mark.parametrize("value", ["12", "1", "-1", "two"])
def test_fewer_months_than_a_year_with_its_comparison_are_refused(value: str) -> None:
    with pytest.raises(EnvError, match="USAGE_MONTHS_KEPT"):
        _env(USAGE_MONTHS_KEPT=value)
    assert _env().usage_months_kept == 25


def test_what_was_dropped_is_never_rewritten_and_a_wrong_record_is_found(market: Market, old: list[uuid.UUID]) -> None:
    drop_usage(OLD)
    for statement in (
        "UPDATE billing_droppedusage SET cost_nano_usd = 0",
        "DELETE FROM billing_droppedusage",
        "INSERT INTO billing_droppedusage (month, predictions, cost_nano_usd) VALUES ('2020-01-01', 0, 0)",
    ):
        refused = pytest.raises(DatabaseError, match="permission denied")
        with refused, transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)
    move(old[2], at(OLD))  # a settled hold of the dropped month that was not there when it was dropped
    assert "dropped usage was that of settled holds" in [found.rule for found in find_discrepancies()]


@pytest.mark.django_db(transaction=True)
def test_a_query_that_reads_the_table_keeps_it_for_a_day_and_predictions_do_not_wait(market: Market) -> None:
    sell(market, at(OLD))
    finish()
    with psycopg.connect(**conninfo()) as reader:
        reader.execute("SELECT count(*) FROM billing_usage")
        assert drop_usage(OLD) == "busy"  # after a second
        assert not DroppedUsage.objects.exists() and Usage.objects.count() == 1
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",)
    assert drop_usage(OLD) == "dropped"
    assert Account.objects.filter(kind="customer_credit", organization=market.buyer, posted__gt=0).exists()
