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
from billing.errors import InsufficientFunds
from billing.integrity import find_discrepancies
from billing.models import Account, BudgetNode, Correction, Hold, LedgerTransaction, Lot, Posting, Usage
from billing.rollups.checks import find_wrong_sums
from billing.services import correct_prediction, reverse_transaction
from billing.splits import parts_of
from marketplace.accounts.models import Organization
from marketplace.config.grants import apply_grants
from marketplace.config.roles import OWNER
from tests.billing.support import REPLICA, charge, hold_request, place
from tests.billing.support import settle as settle_now
from tests.database import application, as_owner, as_superuser

pytestmark = pytest.mark.deep  # every migration from the first
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
def empty_books(transactional_db: None) -> Iterator[None]:
    """A database of its own without any table; the tests' own comes back."""
    name = connection.settings_dict["NAME"]
    with as_superuser():
        sql(f'CREATE DATABASE "{name}_moved" OWNER {OWNER}')
    connection.close()
    connection.settings_dict["NAME"] = f"{name}_moved"
    with as_superuser():
        sql("CREATE SCHEMA extensions")
        for extension in ("pg_trgm", "unaccent", "vector"):
            sql(f"CREATE EXTENSION {extension} SCHEMA extensions")
        sql("GRANT USAGE ON SCHEMA extensions TO PUBLIC")
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict["NAME"] = name
        with as_superuser():
            sql(f'DROP DATABASE "{name}_moved" WITH (FORCE)')


@pytest.fixture
def old_books(empty_books: None) -> None:
    """The schema before splits, lots and budget nodes."""
    migrate(("billing", "0011_charge_checks"))


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


def old_hold(
    key: uuid.UUID | None = None, *, amount: int = 1_000, dollars: int = 1, bps: int = 8_000, maker: uuid.UUID = MAKER
) -> uuid.UUID:
    """A hold as it was placed then; with 0 `dollars` the model is free."""
    hold = uuid.uuid4()
    placed = sql(
        "SELECT outcome FROM billing_place_hold(%s, %s, %s, %s, %s, %s, %s, 0, %s, 'maker/thing', %s, %s, %s, "
        "NULL, '', %s, now() + interval '5 minutes', NULL, 'adapter', 'base', 1000, 1000)",
        *(hold, BUYER, key, amount, 150 * dollars, 75 * dollars, 600 * dollars, bps),
        *(uuid.UUID(int=1), uuid.UUID(int=2), maker, REPLICA),
    )
    assert placed == [("placed",)]
    return hold


def settle_old(hold: uuid.UUID) -> None:
    sql("SELECT billing_settle_hold(%s, 1, 100, 20, 50, 'stop', 'r', %s)", hold, REPLICA)


def reverse_old(reference: str) -> None:
    """Undo a transaction as the code before corrections did."""
    with transaction.atomic():
        sql(
            "INSERT INTO billing_ledgertransaction (kind, reference, reverses_id, memo) "
            "SELECT 'reversal', id::text, id, 'by mistake' FROM billing_ledgertransaction WHERE reference = %s",
            reference,
        )
        sql(
            "INSERT INTO billing_entry (transaction_id, account_id, amount) SELECT back.id, e.account_id, -e.amount "
            "FROM billing_ledgertransaction back JOIN billing_entry e ON e.transaction_id = back.reverses_id "
            "JOIN billing_ledgertransaction t ON t.id = back.reverses_id AND t.reference = %s ORDER BY e.id",
            reference,
        )


def make_organizations() -> None:
    for organization, slug in ((BUYER, "buyer"), (MAKER, "maker")):
        sql(
            "INSERT INTO accounts_organization (id, slug, name, created_at) VALUES (%s, %s, %s, now())",
            organization,
            slug,
            slug,
        )


def fill() -> tuple[uuid.UUID, uuid.UUID, uuid.UUID]:
    """Credit of three origins, a charge, a refund, and an open hold of a rotated key with a budget."""
    make_organizations()
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
    assert list(lots) == [("paid", 3_000 - (COST - 30)), ("promotional", 0), ("paid", 6_000)]
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


def fill_before_refunds() -> uuid.UUID:
    """A charge of the first schema, reversed by a person: there were no refunds yet."""
    make_organizations()
    old_transaction("top_up", "first", 3 * COST, "stripe_cash")
    reversed_once = uuid.uuid4()
    placed = sql(
        "SELECT outcome FROM billing_place_hold(%s, %s, NULL, 100, 150, 75, 600, 0, 8000, 'maker/thing', %s, %s, %s, "
        "NULL, '', %s, now() + interval '5 minutes')",
        *(reversed_once, BUYER, uuid.UUID(int=1), uuid.UUID(int=2), MAKER, REPLICA),
    )
    assert placed == [("placed",)]
    sql("SELECT billing_settle_hold(%s, 100, 20, 50, 'stop', 'r', %s)", reversed_once, REPLICA)
    reverse_old(str(reversed_once))
    return reversed_once


def test_spent_reversed_and_free_things_move_too_and_nothing_is_given_back_twice(empty_books: None) -> None:
    migrate(("billing", "0005_books_close"))
    with as_owner():
        reversed_once = fill_before_refunds()
    migrate(("billing", "0011_charge_checks"))
    with as_owner():
        old_transaction("promotion", "gift", 50, "promotion")
        reverse_old("gift")
        third, nothing, all_of_it = (
            old_hold(amount=COST, bps=3_333),
            old_hold(amount=COST, bps=0),
            old_hold(amount=COST, bps=10_000, maker=BUYER),  # sold to itself
        )
        free, free_and_open = old_hold(amount=0, dollars=0), old_hold(amount=0, dollars=0)
        for hold in (third, nothing, all_of_it, free):
            settle_old(hold)
        assert sql("SELECT billing_refund_prediction(%s, 'lost')", free) == [(True,)]
        filled = figures()
        leaves = MigrationExecutor(connection).loader.graph.leaf_nodes()
    migrate(*leaves)
    with as_owner():
        apply_grants(connection, application=application())

    assert figures() == filled and find_discrepancies() == [] and find_wrong_sums() == []
    assert list(Lot.objects.order_by("id").values_list("kind", "remaining")) == [("paid", 0), ("promotional", 0)]
    corrections = Correction.objects.values_list("prediction_id", "amount_nano_usd", "reason")
    assert set(corrections) == {(reversed_once, COST, "by mistake"), (free, 0, "lost")}
    first, gift = (LedgerTransaction.objects.get(reference=name) for name in ("first", "gift"))
    with pytest.raises(InsufficientFunds):  # all of it is spent
        reverse_transaction(transaction_id=first.pk, memo="refund")
    assert reverse_transaction(transaction_id=gift.pk, memo="again").memo == "by mistake"
    assert correct_prediction(prediction_id=reversed_once, reason="again") == 0
    assert correct_prediction(prediction_id=free, reason="again") == 0
    assert figures() == filled

    settle_now(free_and_open)
    for hold in (third, nothing, all_of_it):
        assert correct_prediction(prediction_id=hold, reason="wrong") == COST
    assert find_discrepancies() == []
    balances = dict(Account.objects.exclude(organization=None).values_list("kind", "posted"))
    assert balances.pop("customer_credit") == 3 * COST and set(balances.values()) == {0}
