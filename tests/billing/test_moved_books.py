"""The migrations of filled books: no entry or balance changes; splits, lots, corrections and budget nodes follow."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from billing.account_statements import balance_at, platform_statements, statements
from billing.integrity import find_discrepancies
from billing.models import Account, BudgetNode, Correction, Hold, Lot, Posting, Usage
from billing.services import correct_prediction
from billing.splits import parts_of
from marketplace.accounts.models import Organization
from marketplace.config.grants import apply_grants
from marketplace.config.roles import OWNER
from tests.billing.support import REPLICA, charge, hold_request, place
from tests.billing.support import settle as settle_now
from tests.database import application, as_owner, as_superuser

BUYER, MAKER, KEY, ROTATED = (uuid.UUID(int=number) for number in (11, 12, 13, 14))
LONG_AGO = datetime(2026, 3, 5, 12, tzinfo=UTC)
COST = 44


def sql(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def migrate(*targets: tuple[str, str]) -> None:
    with as_owner():
        MigrationExecutor(connection).migrate(list(targets))


@pytest.fixture
def old_books(transactional_db: None) -> Iterator[None]:
    """A database of its own with the schema before splits, lots and budget nodes; the tests' own comes back."""
    name = connection.settings_dict["NAME"]
    with as_superuser():
        sql(f'CREATE DATABASE "{name}_moved" OWNER {OWNER}')
    connection.close()
    connection.settings_dict["NAME"] = f"{name}_moved"
    try:
        migrate(("billing", "0011_charge_checks"))
        yield
    finally:
        connection.close()
        connection.settings_dict["NAME"] = name
        with as_superuser():
            sql(f'DROP DATABASE "{name}_moved" WITH (FORCE)')


def old_transaction(kind: str, reference: str, amount: int, other: str) -> None:
    """A credit as the code before lots wrote it, four months ago."""
    with transaction.atomic():
        sql(
            "INSERT INTO billing_ledgertransaction (kind, reference, created_at) VALUES (%s, %s, %s)",
            kind,
            reference,
            LONG_AGO,
        )
        sql(
            "INSERT INTO billing_entry (transaction_id, account_id, amount) SELECT t.id, line.account, line.amount "
            "FROM billing_ledgertransaction t, (VALUES (billing_account_id('customer_credit', %s), %s::bigint), "
            "(billing_account_id(%s, NULL), %s)) AS line (account, amount) WHERE t.reference = %s",
            BUYER,
            amount,
            other,
            -amount,
            reference,
        )


def old_hold(key: uuid.UUID | None = None) -> uuid.UUID:
    hold = uuid.uuid4()
    placed = sql(
        "SELECT outcome FROM billing_place_hold(%s, %s, %s, 1000, 150, 75, 600, 0, 8000, 'maker/thing', %s, %s, %s, "
        "NULL, '', %s, now() + interval '5 minutes', NULL, 'adapter', 'base', 1000, 1000)",
        *(hold, BUYER, key, uuid.UUID(int=1), uuid.UUID(int=2), MAKER, REPLICA),
    )
    assert placed == [("placed",)]
    return hold


def settle_old(hold: uuid.UUID) -> None:
    sql("SELECT billing_settle_hold(%s, 1, 100, 20, 50, 'stop', 'r', %s)", hold, REPLICA)


def fill() -> tuple[uuid.UUID, uuid.UUID, uuid.UUID]:
    """Credit of three origins, a charge, a refund, and an open hold of a rotated key with a budget."""
    for organization, slug in ((BUYER, "buyer"), (MAKER, "maker")):
        sql(
            "INSERT INTO accounts_organization (id, slug, name, created_at) VALUES (%s, %s, %s, now())",
            organization,
            slug,
            slug,
        )
    key = "INSERT INTO accounts_apikey (id, organization_id, name, prefix, digest, scopes, created_at, first_key_id) "
    sql(key + "VALUES (%s, %s, 'k', 'a', '', '{}', now(), NULL)", KEY, BUYER)
    sql(key + "VALUES (%s, %s, 'k', 'b', '', '{}', now(), %s)", ROTATED, BUYER, KEY)
    sql("INSERT INTO billing_keybudget (api_key_id, total_limit_nano_usd) VALUES (%s, 5000)", KEY)
    old_transaction("top_up", "first", 3_000, "stripe_cash")
    old_transaction("promotion", "gift", 30, "promotion")
    old_transaction("top_up", "second", 6_000, "stripe_cash")
    charged, refunded, still_open = old_hold(KEY), old_hold(), old_hold(ROTATED)
    settle_old(charged)
    settle_old(refunded)
    assert sql("SELECT billing_refund_prediction(%s, 'lost')", refunded) == [(True,)]
    return charged, refunded, still_open


def figures() -> list[list[tuple[Any, ...]]]:
    """Everything that must be what it was, by columns that both schemas have."""
    return [
        sql("SELECT id, organization_id, kind, posted, held FROM billing_account ORDER BY id"),
        sql("SELECT id, kind, reference, memo, created_at FROM billing_ledgertransaction ORDER BY id"),
        sql("SELECT id, transaction_id, account_id, amount FROM billing_entry ORDER BY id"),
        sql("SELECT id, state, amount_nano_usd, cost_nano_usd, closed_at FROM billing_hold ORDER BY id"),
        sql("SELECT prediction_id, cost_nano_usd, prompt_tokens, receipt FROM billing_usage ORDER BY 1"),
    ]


def test_filled_books_keep_every_entry_and_balance_and_go_on_in_the_new_tables(old_books: None) -> None:
    with as_owner():
        charged, refunded, still_open = fill()
        filled = figures()
        leaves = MigrationExecutor(connection).loader.graph.leaf_nodes()
    migrate(*leaves)
    with as_owner():
        apply_grants(connection, application=application())

    assert figures() == filled and find_discrepancies() == []
    # Splits: what was 8,000 basis points.
    assert {
        (part.reason, part.organization_id, part.basis_points)
        for part in parts_of(Hold.objects.get(pk=charged).split_id)
    } == {
        ("creator", MAKER, 8_000),
        ("platform", None, 2_000),
    }
    assert Usage.objects.values_list("split_id").distinct().count() == 1
    # Lots: 44 are spent, the promotion first and then the oldest top-up.
    lots = Lot.objects.order_by("transaction").values_list("kind", "remaining")
    assert list(lots) == [("paid", 3_000 - (COST - 30)), ("paid", 6_000)]
    correction = Correction.objects.get()
    assert (correction.prediction_id, correction.amount_nano_usd, correction.reason) == (refunded, COST, "lost")
    assert correction.transaction is not None and correction.transaction.corrects is not None
    node = BudgetNode.objects.get()
    assert (node.api_key_id, node.total_limit_nano_usd, node.spent_total_nano_usd) == (KEY, 5_000, COST)
    assert node.held_nano_usd == 1_000 and Hold.objects.get(pk=still_open).budget_path == node.path
    assert list(Posting.objects.order_by("sequence").values_list("sequence", flat=True)) == list(range(1, 16))
    history_reads_as_before()

    # Predictions in flight settle, a charge is given back, and new predictions run.
    settle_now(still_open)
    assert correct_prediction(prediction_id=charged, amount_nano_usd=4, reason="a part") == 4
    maker, buyer = Organization.objects.get(pk=MAKER), Organization.objects.get(pk=BUYER)
    settle_now(place(hold_request(buyer, maker)).prediction_id)
    assert charge(still_open).attempt == 1 and find_discrepancies() == []
    balances = dict(Account.objects.filter(organization=maker).values_list("kind", "posted"))
    assert balances["creator_reserve"] + balances["creator_payable"] == 3 * 35 - 3


def history_reads_as_before() -> None:
    """Statements and balances of the past, from postings that the migration made."""
    buyer = Organization.objects.get(pk=BUYER)
    account = Account.objects.get(organization=buyer, kind=Account.Kind.CUSTOMER_CREDIT)
    times = (LONG_AGO - timedelta(days=1), LONG_AGO + timedelta(hours=1), timezone.now() + timedelta(minutes=2))
    assert [balance_at(account, at) for at in times] == [0, 9_030, 9_030 - COST]
    (march,) = statements(buyer, LONG_AGO.date())
    assert (march.opening_nano_usd, march.closing_nano_usd) == (0, 9_030)
    today = platform_statements(timezone.now().date())
    assert sum(statement.closing_nano_usd for statement in today) == 0
    assert {s.account_kind: s.closing_nano_usd for s in today}["customer_credit"] == account.posted == 9_030 - COST
