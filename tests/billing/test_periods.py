"""Time in the books: entries keep the number and month they got, months close, statements add up."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, connections, transaction
from django.utils import timezone

from billing.account_statements import balance_at, is_closed, months, platform_statements, statement_lines, statements
from billing.errors import MonthNotClosable
from billing.ledger import record_incident
from billing.models import Account, Entry, Incident, LedgerTransaction, Period, Posting
from billing.periods import close_month, post_entries
from billing.services import credit_promotion, refund_prediction_sync
from billing.statements import SETTLE_HOLDS, settle_parameters
from marketplace.accounts.models import Organization
from tests.billing.support import USAGE_COST, charge, hold_request, make_organization, place, settle
from tests.database import as_owner, behind_the_triggers

pytestmark = pytest.mark.django_db(transaction=True)

LAST_MONTH = (timezone.now().date().replace(day=1) - timedelta(days=1)).replace(day=1)
THIS_MONTH = timezone.now().date().replace(day=1)


def book(organization: Organization, amount: int, reference: str, *, at: datetime | None = None) -> None:
    """Give credit; with `at`, as if it had been booked then."""
    credit = credit_promotion(organization=organization, amount_nano_usd=amount, reference=reference)
    if at is not None:
        with behind_the_triggers() as cursor:
            cursor.execute("UPDATE billing_ledgertransaction SET created_at = %s WHERE id = %s", [at, credit.pk])


def in_last_month(day: int = 3) -> datetime:
    return datetime(LAST_MONTH.year, LAST_MONTH.month, day, 12, tzinfo=UTC)


def credit_account(organization: Organization) -> Account:
    return Account.objects.get(organization=organization, kind=Account.Kind.CUSTOMER_CREDIT)


def refused(message: str, act: Callable[[], object]) -> None:
    before = list(Posting.objects.order_by("sequence").values()), list(Period.objects.values())
    with pytest.raises((DatabaseError, MonthNotClosable), match=message), transaction.atomic():
        act()
    assert (list(Posting.objects.order_by("sequence").values()), list(Period.objects.values())) == before


def sql(statement: str) -> Callable[[], None]:
    def act() -> None:
        with as_owner(), connection.cursor() as cursor:
            cursor.execute(statement)

    return act


def test_every_entry_is_posted_once_with_its_account_s_running_balance() -> None:
    buyer, creator = make_organization(10_000), make_organization()
    request = place(hold_request(buyer, creator))
    settle(request.prediction_id)
    assert post_entries() == Entry.objects.count() == 5
    assert post_entries() == 0
    refund_prediction_sync(prediction_id=request.prediction_id, reason="lost")
    assert post_entries() == 3
    found = list(Posting.objects.order_by("sequence").values_list("sequence", flat=True))
    assert found == list(range(1, 9))
    copies = {(row.transaction_id, row.account_id, row.amount) for row in Posting.objects.all()}
    assert copies == set(Entry.objects.values_list("transaction_id", "account_id", "amount"))
    for account in Account.objects.all():
        balance = 0
        for row in Posting.objects.filter(account=account).order_by("sequence"):
            balance += row.amount
            assert row.balance == balance
        assert balance == account.posted


def test_an_entry_that_commits_late_comes_after_those_that_were_seen_before_it() -> None:
    """The transaction of one connection begins first and commits last; numbers follow what could be seen."""
    late = place(hold_request(make_organization(10_000), make_organization())).prediction_id
    slow = connections.create_connection("default")
    try:
        slow.set_autocommit(False)
        with slow.cursor() as cursor:
            cursor.execute(SETTLE_HOLDS, settle_parameters([charge(late)]))
            assert cursor.fetchone()[1] == "settled"
        make_organization(1)
        assert post_entries() == 4  # of two promotions
        slow.commit()
    finally:
        slow.close()
    assert post_entries() == 3
    kinds = Posting.objects.order_by("sequence").values_list("transaction__kind", flat=True)
    assert list(kinds) == ["promotion"] * 4 + ["prediction"] * 3
    # The prediction had the smaller id: ids follow the beginning of a transaction.
    ids = dict(LedgerTransaction.objects.order_by("id").values_list("kind", "id"))
    assert ids["prediction"] < ids["promotion"]


def test_calls_take_turns_and_give_no_number_twice() -> None:
    organizations = [make_organization(100) for _ in range(12)]
    before = Entry.objects.count()

    def run(_: int) -> int:
        try:
            return post_entries()
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        posted = sum(pool.map(run, range(8)))
    assert posted == before == Posting.objects.count() == 2 * len(organizations)
    assert sorted(Posting.objects.values_list("sequence", flat=True)) == list(range(1, before + 1))


def test_books_restored_into_a_younger_server_are_posted_whole() -> None:
    make_organization(100)
    assert post_entries() == 2
    with as_owner(), connection.cursor() as cursor:
        cursor.execute("UPDATE billing_postingmark SET looked_from = %s", [2**62])
    make_organization(100)
    assert post_entries() == 2


def test_a_balance_at_an_instant_is_what_was_posted_by_then() -> None:
    organization = make_organization()
    start = timezone.now()
    book(organization, 500, "first")
    post_entries()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (between,) = cursor.fetchone()
    book(organization, 40, "second")
    post_entries()
    account = credit_account(organization)
    assert [balance_at(account, at) for at in (start, between, timezone.now() + timedelta(minutes=1))] == [0, 500, 540]


def test_a_month_closes_with_balances_that_never_change_and_late_events_go_to_the_open_month() -> None:
    organization = make_organization()
    book(organization, 700, "in its month", at=in_last_month())
    book(organization, 30, "this month")
    post_entries()
    close_month(month=LAST_MONTH + timedelta(days=9), closed_by="accountant")
    book(organization, 5, "late", at=in_last_month(20))
    post_entries()

    (closed,) = statements(organization, LAST_MONTH)
    assert is_closed(LAST_MONTH + timedelta(days=3)) and (closed.opening_nano_usd, closed.closing_nano_usd) == (0, 700)
    assert [(m.kind, m.amount_nano_usd, m.lines) for m in closed.movements] == [("promotion", 700, 1)]
    (current,) = statements(organization, THIS_MONTH)
    assert not is_closed(THIS_MONTH) and (current.opening_nano_usd, current.closing_nano_usd) == (700, 735)
    assert [line.reference for line in statement_lines(organization, "customer_credit", THIS_MONTH)] == [
        "this month",
        "late",
    ]
    assert months(organization) == [THIS_MONTH, LAST_MONTH]
    assert Period.objects.get().closed_by == "accountant"
    # The whole platform: what the customers have is what the platform gave.
    assert {s.account_kind: s.closing_nano_usd for s in platform_statements(LAST_MONTH)} == {
        "customer_credit": 700,
        "promotion": -700,
    }


def test_a_later_month_opens_with_the_balance_of_the_closed_one_before_it() -> None:
    buyer, creator = make_organization(), make_organization()
    earlier = (LAST_MONTH - timedelta(days=1)).replace(day=1)
    book(buyer, 5_000, "two months ago", at=datetime(earlier.year, earlier.month, 2, tzinfo=UTC))
    book(buyer, 1_000, "a month ago", at=in_last_month())
    settle(place(hold_request(buyer, creator)).prediction_id)
    post_entries()
    with pytest.raises(MonthNotClosable, match="an earlier month has entries"):
        close_month(month=LAST_MONTH, closed_by="accountant")
    open_figures = [(s.opening_nano_usd, s.closing_nano_usd) for s in statements(buyer, LAST_MONTH)]
    close_month(month=earlier, closed_by="accountant")
    close_month(month=LAST_MONTH, closed_by="accountant")
    assert [(s.opening_nano_usd, s.closing_nano_usd) for s in statements(buyer, LAST_MONTH)] == open_figures
    assert open_figures == [(5_000, 6_000)]
    (now,) = statements(buyer, THIS_MONTH)
    assert (now.opening_nano_usd, now.closing_nano_usd) == (6_000, 6_000 - USAGE_COST)
    assert sum(s.closing_nano_usd for s in platform_statements(THIS_MONTH)) == 0


def test_a_month_is_not_closed_before_it_is_over_twice_or_while_an_incident_is_open() -> None:
    organization = make_organization()
    book(organization, 700, "in its month", at=in_last_month())
    refused("it is not over", lambda: close_month(month=THIS_MONTH, closed_by="x"))
    record_incident(kind=Incident.Kind.LEDGER_SUM, detail={})
    post_entries()
    refused("an incident waits", lambda: close_month(month=LAST_MONTH, closed_by="x"))
    Incident.objects.update(resolved_at=timezone.now())
    close_month(month=LAST_MONTH, closed_by="x")
    refused("closed already", lambda: close_month(month=LAST_MONTH, closed_by="x"))
    refused("closed already", lambda: close_month(month=LAST_MONTH - timedelta(days=1), closed_by="x"))


def test_the_database_refuses_changes_of_postings_and_of_closed_months() -> None:
    organization = make_organization()
    book(organization, 700, "in its month", at=in_last_month())
    post_entries()
    close_month(month=LAST_MONTH, closed_by="x")
    for table in ("posting", "instant", "period", "periodbalance", "periodmovement"):
        refused("append-only", sql(f"DELETE FROM billing_{table}"))
    refused("append-only", sql("UPDATE billing_posting SET amount = amount + 1"))
    refused("append-only", sql("UPDATE billing_periodbalance SET closing = closing + 1"))
    row = f"SELECT 99, {LedgerTransaction.objects.first().pk}, -1, 5, '{LAST_MONTH}', 5"
    refused(
        "the month of this posting is closed",
        sql(f"INSERT INTO billing_posting (sequence, transaction_id, account_id, amount, period, balance) {row}"),
    )


def test_the_lines_of_a_statement_page_by_number_and_belong_to_one_organization() -> None:
    mine, other = make_organization(), make_organization(10)
    for number in range(5):
        book(mine, 10 + number, f"line {number}")
    post_entries()
    seen: list[str] = []
    after = 0
    while lines := statement_lines(mine, "customer_credit", THIS_MONTH, after=after, limit=2):
        seen += [line.reference for line in lines]
        after = lines[-1].sequence
        book(mine, 1, f"while reading {after}")  # a later entry never moves a page
        if len(seen) < 5:
            continue
        break
    assert seen[:5] == [f"line {number}" for number in range(5)]
    assert {line.amount_nano_usd for line in statement_lines(other, "customer_credit", THIS_MONTH)} == {10}


def test_the_command_closes_a_month_and_prints_the_platform_s_statement(capsys: pytest.CaptureFixture[str]) -> None:
    organization = make_organization()
    book(organization, 700, "in its month", at=in_last_month())
    call_command("close_month", f"{LAST_MONTH:%Y-%m}", by="accountant")
    printed = capsys.readouterr().out
    assert f"{LAST_MONTH:%Y-%m} is closed" in printed and "customer_credit" in printed and " 700 " in f"{printed} "
    with pytest.raises(CommandError, match="closed already"):
        call_command("close_month", f"{LAST_MONTH:%Y-%m}")
    with pytest.raises(CommandError, match="YYYY-MM"):
        call_command("close_month", "yesterday")


def test_a_killed_call_leaves_nothing_half_posted() -> None:
    make_organization(100)
    with connection.cursor() as cursor, transaction.atomic():
        cursor.execute("SELECT billing_post_entries(10)")
        assert cursor.fetchone() == (2,)
        transaction.set_rollback(True)
    assert not Posting.objects.exists()
    assert post_entries() == 2
    assert list(Posting.objects.order_by("sequence").values_list("sequence", flat=True)) == [1, 2]


def test_months_of_the_future_and_the_past_have_statements_of_nothing_or_of_the_balance() -> None:
    organization = make_organization(100)
    post_entries()
    (before,) = statements(organization, date(2020, 5, 1))
    (after,) = statements(organization, date(2099, 5, 1))
    assert (before.opening_nano_usd, before.movements) == (0, ())
    assert (after.opening_nano_usd, after.closing_nano_usd) == (100, 100)
