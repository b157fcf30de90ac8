"""The migration of filled books: every entry of before gets its number and month, and no balance changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from billing.account_statements import balance_at, platform_statements, statements
from billing.integrity import find_discrepancies
from billing.models import Account, Entry, Hold, LedgerTransaction, Posting, Usage
from billing.services import credit_promotion, refund_prediction_sync
from marketplace.config.grants import apply_grants
from tests.billing.support import USAGE_COST, hold_request, make_organization, place, settle
from tests.database import application, as_owner, as_superuser

pytestmark = pytest.mark.django_db(transaction=True)


def migrate(name: str) -> None:
    with as_owner():
        MigrationExecutor(connection).migrate([("billing", name)])


@pytest.fixture
def before() -> Iterator[None]:
    """The schema before postings; whatever happens, the newest one comes back for the tests that follow."""
    migrate("0011_charge_checks")
    try:
        yield
    finally:
        with as_owner():
            executor = MigrationExecutor(connection)
            executor.migrate(executor.loader.graph.leaf_nodes("billing"))
            apply_grants(connection, application=application())


def figures() -> tuple[object, ...]:
    return (
        list(Account.objects.order_by("id").values()),
        list(LedgerTransaction.objects.order_by("id").values()),
        list(Entry.objects.order_by("id").values()),
        list(Hold.objects.order_by("id").values()),
        list(Usage.objects.order_by("prediction_id").values()),
    )


def test_filled_books_keep_every_entry_and_balance_and_get_their_months(before: None) -> None:
    buyer, creator = make_organization(), make_organization()
    long_ago = datetime(2026, 3, 5, 12, tzinfo=UTC)
    old = credit_promotion(organization=buyer, amount_nano_usd=9_000, reference="long ago")
    with transaction.atomic(), as_superuser(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute("UPDATE billing_ledgertransaction SET created_at = %s WHERE id = %s", [long_ago, old.pk])
    kept, refunded = (place(hold_request(buyer, creator)).prediction_id for _ in range(2))
    place(hold_request(buyer, creator))
    settle(kept)
    settle(refunded)
    refund_prediction_sync(prediction_id=refunded, reason="lost")
    filled = figures()

    migrate("0012_postings")
    with as_owner():
        apply_grants(connection, application=application())

    assert figures() == filled and find_discrepancies() == []
    assert list(Posting.objects.order_by("sequence").values_list("sequence", flat=True)) == list(range(1, 12))
    account = Account.objects.get(organization=buyer, kind=Account.Kind.CUSTOMER_CREDIT)
    times = (long_ago - timedelta(days=1), long_ago + timedelta(hours=1), timezone.now() + timedelta(minutes=2))
    assert [balance_at(account, at) for at in times] == [
        0,
        9_000,
        9_000 - USAGE_COST,
    ] and account.posted == 9_000 - USAGE_COST
    (march,) = statements(buyer, long_ago.date())
    assert (march.opening_nano_usd, march.closing_nano_usd) == (0, 9_000)
    today = platform_statements(timezone.now().date())
    assert sum(statement.closing_nano_usd for statement in today) == 0
    assert {s.account_kind: s.closing_nano_usd for s in today}["customer_credit"] == account.posted
