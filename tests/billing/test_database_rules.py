"""Every rule that money depends on, attacked with raw SQL: the database itself must refuse.

The attacks act as the owner of the schema, whom no missing right stops: the triggers and constraints have to.
"""

from __future__ import annotations

import pytest
from django.db import DatabaseError, connection, transaction

from billing.integrity import find_discrepancies
from billing.models import Account, Entry, Hold, LedgerTransaction, Usage
from tests.billing.support import USAGE_COST
from tests.database import as_owner

pytestmark = pytest.mark.django_db


def run(*statements: str) -> None:
    """All statements together, with what a commit would check."""
    with transaction.atomic(), as_owner(), connection.cursor() as cursor:
        for statement in (*statements, "SET CONSTRAINTS ALL IMMEDIATE", "SET CONSTRAINTS ALL DEFERRED"):
            cursor.execute(statement)


def refused(message: str, *statements: str) -> None:
    """The statements fail with `message`, and the ledger is what it was."""
    before = ledger()
    with pytest.raises(DatabaseError, match=message):
        run(*statements)
    assert ledger() == before
    assert find_discrepancies() == []


def ledger() -> tuple[object, ...]:
    return (
        list(Account.objects.order_by("id").values_list("id", "posted", "held")),
        list(LedgerTransaction.objects.order_by("id").values_list("id", "kind", "reference")),
        list(Entry.objects.order_by("id").values_list("id", "transaction", "account", "amount")),
        list(Hold.objects.order_by("id").values_list("id", "state", "amount_nano_usd", "cost_nano_usd")),
        list(Usage.objects.order_by("prediction_id").values_list("prediction_id", "cost_nano_usd")),
    )


def opening(reference: str = "attack") -> str:
    return f"INSERT INTO billing_ledgertransaction (kind, reference) VALUES ('promotion', '{reference}')"


def entries(*lines: tuple[int, int], transaction_id: str = "currval('billing_ledgertransaction_id_seq')") -> str:
    lot = "(SELECT max(id) FROM billing_lot WHERE account_id = {})"  # the one that the books have, of credit alone
    values = ", ".join(f"({transaction_id}, {account}, {amount}, {lot.format(account)})" for account, amount in lines)
    return f"INSERT INTO billing_entry (transaction_id, account_id, amount, lot_id) VALUES {values}"


def test_a_transaction_that_does_not_sum_to_zero(books: dict[str, int]) -> None:
    customer, promotion = books["customer"], books["promotion"]
    refused("sum to 1", opening(), entries((customer, 501), (promotion, -500)))
    refused("sum to 500", opening(), entries((customer, 500)))
    refused("0 entries", opening())
    run(opening(), entries((customer, 500), (promotion, -500)))


def test_entries_added_after_an_early_check(books: dict[str, int]) -> None:
    customer, promotion, creator = books["customer"], books["promotion"], books["creator"]
    early = (opening(), entries((customer, 500), (promotion, -500)), "SET CONSTRAINTS ALL IMMEDIATE")
    refused("sum to 777", *early, entries((creator, 777)))
    refused("sum to 777", *early, "SET CONSTRAINTS ALL DEFERRED", entries((creator, 777)))
    refused("sum to 2", opening(), entries((customer, 500), (promotion, -498)), entries((creator, -2)))


def test_an_entry_of_nothing_or_twice_on_one_account(books: dict[str, int]) -> None:
    customer, promotion = books["customer"], books["promotion"]
    refused("billing_entry_not_zero", opening(), entries((customer, 0), (promotion, 0)))
    refused(
        "billing_entry_unique_account",
        opening(),
        entries((customer, 1), (customer, 1), (promotion, -2)),
    )


@pytest.mark.django_db(transaction=True)  # a transaction closes when it commits
def test_adding_entries_to_a_closed_transaction_even_if_they_cancel_out(books: dict[str, int]) -> None:
    closed = str(books["other_transaction"])
    refused("closed or unknown", entries((books["creator"], 5), (books["revenue"], -5), transaction_id=closed))
    refused("closed or unknown", entries((books["creator"], 5), transaction_id="999999999"))
    forged = "UPDATE billing_ledgertransaction SET database_transaction = pg_current_xact_id()::text::bigint"
    refused("append-only", forged, entries((books["creator"], 5), (books["revenue"], -5), transaction_id=closed))


def test_the_entries_of_a_prediction_that_are_not_those_of_its_hold(books: dict[str, int]) -> None:
    customer, creator, revenue = books["customer"], books["creator"], books["revenue"]
    booked = "INSERT INTO billing_ledgertransaction (kind, reference) VALUES ('prediction', '{}')"
    lines = entries((customer, -10), (creator, 8), (revenue, 2))
    settled, still_open = (str(Hold.objects.get(state=state).pk) for state in ("settled", "open"))
    for reference in ("not an id", "00000000-0000-4000-8000-000000000000", still_open):
        refused("names no settled prediction", booked.format(reference), lines)
    refused("unique_reference", booked.format(settled), lines)
    close = (
        "UPDATE billing_hold SET state = 'settled', closed_at = now(), cost_nano_usd = 10, allowance_used_nano_usd = 0 "
    )
    for wrong in (
        ((customer, -11), (creator, 9), (revenue, 2)),
        ((customer, -10), (creator, 9), (revenue, 1)),
        ((customer, -10), (creator, 10)),
    ):
        refused(
            "are not those of prediction", close + "WHERE state = 'open'", booked.format(still_open), entries(*wrong)
        )


def test_a_hold_settled_by_hand(books: dict[str, int]) -> None:
    close = (
        "UPDATE billing_hold SET state = 'settled', closed_at = now(), cost_nano_usd = {}, allowance_used_nano_usd = 0 "
    )
    for cost in (0, 10):
        refused("settled without usage", close.format(cost) + "WHERE state = 'open'")
    refused("settled without usage", "SET CONSTRAINTS ALL IMMEDIATE", close.format(10) + "WHERE state = 'open'")
    usage = copy_of_usage(prediction_id=f"'{Hold.objects.get(state='open').pk}'", created_at="now()")
    refused("settled without entries", close.format(USAGE_COST) + "WHERE state = 'open'", usage)
    cheap = copy_of_usage(
        prediction_id=f"'{Hold.objects.get(state='open').pk}'",
        created_at="now()",
        cost_nano_usd="10",
    )
    refused("not that of its tokens", close.format(10) + "WHERE state = 'open'", cheap)


def test_usage_of_an_invented_open_or_already_charged_prediction(books: dict[str, int]) -> None:
    refused("not that of a settled hold", copy_of_usage(prediction_id="gen_random_uuid()"))
    still_open = Hold.objects.get(state="open").pk
    refused("not that of a settled hold", copy_of_usage(prediction_id=f"'{still_open}'", created_at="now()"))
    refused("not that of a settled hold", copy_of_usage(created_at="created_at + interval '1 s'"))
    refused("pkey", copy_of_usage())


@pytest.mark.parametrize("table", ["billing_entry", "billing_ledgertransaction", "billing_usage"])
def test_editing_deleting_or_truncating_what_is_written(books: dict[str, int], table: str) -> None:
    column = {"billing_entry": "amount = amount + 1", "billing_ledgertransaction": "memo = 'x'"}
    refused("append-only", f"UPDATE {table} SET {column.get(table, 'cost_nano_usd = 0')}")
    refused("append-only", f"DELETE FROM {table}")
    refused("append-only", "SET LOCAL billing.guard_truncate = 'on'", f"TRUNCATE {table} CASCADE")


def test_a_partition_of_usage_is_as_protected_as_the_table(books: dict[str, int]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT tableoid::regclass::text FROM billing_usage")
        ((partition,),) = cursor.fetchall()
    assert partition.startswith("billing_usage_20")
    refused("append-only", f"UPDATE {partition} SET cost_nano_usd = 0")
    refused("append-only", f"DELETE FROM {partition}")
    refused("append-only", "SET LOCAL billing.guard_truncate = 'on'", f"TRUNCATE {partition}")


def test_partitions_made_later_and_balances_cannot_be_truncated(books: dict[str, int]) -> None:
    for table in (
        "billing_usage_default",
        "billing_usage_2031_07",
        "billing_account",
        "billing_budgetnode",
        "billing_lot",
        "billing_topuprefund",
        "billing_dispute",
    ):
        refused(
            "append-only",
            "SELECT billing_create_usage_partition('2031-07-15')",
            "SET LOCAL billing.guard_truncate = 'on'",
            f"TRUNCATE {table} CASCADE",
        )


def test_the_same_event_booked_twice(books: dict[str, int]) -> None:
    reference = LedgerTransaction.objects.get(kind="promotion").reference
    refused("billing_transaction_unique_reference", opening(reference))


def test_spending_more_than_is_available(books: dict[str, int]) -> None:
    customer, creator = books["customer"], books["creator"]
    available = Account.objects.get(pk=customer).available
    refused("never_overdrawn", opening(), entries((customer, -available - 1), (creator, available + 1)))
    run(opening(), entries((customer, -available), (creator, available)))
    assert Account.objects.get(pk=customer).available == 0


def test_writing_a_balance_by_hand(books: dict[str, int]) -> None:
    customer = books["customer"]
    refused("entries and holds alone", f"UPDATE billing_account SET posted = posted + 1 WHERE id = {customer}")
    refused("entries and holds alone", f"UPDATE billing_account SET held = 0 WHERE id = {customer}")
    refused("keeps its owner", f"UPDATE billing_account SET kind = 'creator_payable' WHERE id = {customer}")
    rich = "INSERT INTO billing_account (kind, posted, held) VALUES ('stripe_fees', 5, 0)"
    refused("starts empty", rich)
    refused(
        "billing_account_currency_usd", "INSERT INTO billing_account (kind, currency) VALUES ('stripe_fees', 'eur')"
    )


def test_accounts_without_their_owner_or_twice(books: dict[str, int]) -> None:
    refused("owner_fits_kind", "INSERT INTO billing_account (kind) VALUES ('customer_credit')")
    refused("known_kind", "INSERT INTO billing_account (kind) VALUES ('slush_fund')")
    refused("billing_account_unique_kind", "INSERT INTO billing_account (kind) VALUES ('promotion')")
    refused("violates foreign key|still referenced", f"DELETE FROM billing_account WHERE id = {books['customer']}")


def copy_of_open_hold(**changes: str) -> str:
    """An INSERT that copies the open hold with some columns replaced by SQL expressions."""
    columns = [field.column for field in Hold._meta.concrete_fields]
    values = {"id": "gen_random_uuid()", "idempotency_key": "NULL"} | changes
    chosen = ", ".join(values.get(column, column) for column in columns)
    return f"INSERT INTO billing_hold ({', '.join(columns)}) SELECT {chosen} FROM billing_hold WHERE state = 'open'"


def copy_of_usage(**changes: str) -> str:
    """An INSERT that copies the one usage row with some columns replaced by SQL expressions."""
    columns = [field.column for field in Usage._meta.concrete_fields if field.column]
    chosen = ", ".join(changes.get(column, column) for column in columns)
    return f"INSERT INTO billing_usage ({', '.join(columns)}) SELECT {chosen} FROM billing_usage"


def test_holding_more_than_is_available_or_on_another_kind_of_account(books: dict[str, int]) -> None:
    refused("never_overdrawn", copy_of_open_hold(amount_nano_usd="10000"))
    refused("held_is_customers", copy_of_open_hold(account_id=str(books["creator"])))
    refused("amount_not_negative", copy_of_open_hold(amount_nano_usd="-1"))
    refused("class_and_allowance_fit", copy_of_open_hold(class_bps="-1"))
    refused("names no split", copy_of_open_hold(split_id="0"))
    refused("price_not_negative", copy_of_open_hold(output_micro_usd_per_mtok="-1"))
    refused("unique_idempotency_key", copy_of_open_hold(idempotency_key="idempotency_key"))
    refused("starts open", copy_of_open_hold(state="'released'", closed_at="now()"))


def test_changing_the_terms_of_a_hold_or_reopening_it(books: dict[str, int]) -> None:
    for change in (
        "amount_nano_usd = 1",
        "output_micro_usd_per_mtok = 10^6",
        "class_bps = 0",
        "split_id = 0",
        "budget_path = NULL",
    ):
        refused("terms of hold", f"UPDATE billing_hold SET {change} WHERE state = 'open'")
    refused("is closed", "UPDATE billing_hold SET state = 'open', closed_at = NULL WHERE state = 'settled'")
    refused("is closed", "UPDATE billing_hold SET cost_nano_usd = 1 WHERE state = 'settled'")
    refused("cannot be deleted", "DELETE FROM billing_hold WHERE state = 'open'")
    refused("cannot be deleted", "DELETE FROM billing_hold WHERE state = 'settled'")
    refused("append-only", "SET LOCAL billing.guard_truncate = 'on'", "TRUNCATE billing_hold CASCADE")


def test_a_hold_settled_without_cost_above_its_amount_or_never_closed(books: dict[str, int]) -> None:
    close = (
        "UPDATE billing_hold SET state = 'settled', closed_at = {}, cost_nano_usd = {}, allowance_used_nano_usd = {}"
    )
    for closed_at, cost, creator in (
        ("now()", "NULL", "NULL"),
        ("now()", "5", "NULL"),
        ("now()", "1001", "0"),
        ("now()", "5", "1"),
        ("now()", "5", "-1"),
        ("now()", "-1", "0"),
        ("NULL", "5", "0"),
    ):
        refused("billing_hold_state_fits", close.format(closed_at, cost, creator) + " WHERE state = 'open'")
    refused("billing_hold_state_fits", "UPDATE billing_hold SET state = 'lost', closed_at = now() WHERE state = 'open'")


def test_usage_whose_terms_or_tokens_are_not_those_of_its_hold(books: dict[str, int]) -> None:
    for changes in (
        {"allowance_nano_usd": "1"},
        {"split_id": "split_id + 1"},
        {"attempt": "2"},
        {"class_bps": "20000"},
        {"cached_tokens": "prompt_tokens + 1"},
        {"completion_tokens": "0"},
    ):
        refused("tokens_fit|settled hold|its tokens", copy_of_usage(**changes))


def correcting(original: int) -> str:
    return (
        "INSERT INTO billing_ledgertransaction (kind, reference, corrects_id) "
        f"VALUES ('correction', gen_random_uuid()::text, {original})"
    )


def test_corrections_that_exceed_their_original_go_the_same_way_or_name_nothing(books: dict[str, int]) -> None:
    original = books["other_transaction"]  # a promotion of 10,000
    customer, promotion = books["customer"], books["promotion"]
    run(opening("more"), entries((customer, 20_000), (promotion, -20_000)))
    part = (correcting(original), entries((customer, -4_000), (promotion, 4_000)))
    refused("does not undo", correcting(original), entries((customer, 1), (promotion, -1)))
    refused("does not undo", correcting(original), entries((books["revenue"], -5), (promotion, 5)))
    refused("does not undo", *part, *part, *part)
    refused(
        "corrects a correction",
        *part,
        correcting(1).replace("1)", "currval('billing_ledgertransaction_id_seq'))"),
        entries((customer, 1), (promotion, -1)),
    )
    refused("names_original", "INSERT INTO billing_ledgertransaction (kind, reference) VALUES ('correction', 'x')")
    run(*part, *part)


def test_a_correction_of_a_prediction_without_entries_of_an_open_hold_or_above_its_cost(books: dict[str, int]) -> None:
    correction = (
        "INSERT INTO billing_correction (id, prediction_id, amount_nano_usd, reason, transaction_id) "
        "SELECT gen_random_uuid(), id, {}, 'r', {} FROM billing_hold WHERE state = '{}'"
    )
    mine = "currval('billing_ledgertransaction_id_seq')"
    refused("moves_its_amount", correction.format(5, "NULL", "settled"))
    refused("exceed its cost", correction.format(0, "NULL", "settled"))
    refused("is not settled", correction.format(0, "NULL", "open"))
    refused("without the entries", correction.format(5, books["other_transaction"], "settled"))
    original = books["transaction"]
    lines = entries((books["customer"], USAGE_COST), (books["creator"], -35), (books["revenue"], -9))
    refused("is not one of its corrections", correcting(original), lines)
    refused("without the entries", correcting(original), correction.format(USAGE_COST - 1, mine, "settled"), lines)
    refused(
        "does not undo",
        correcting(original),
        correction.format(USAGE_COST, mine, "settled"),
        entries((books["customer"], USAGE_COST), (books["creator"], -34), (books["revenue"], -10)),
    )
    run(correcting(original), correction.format(USAGE_COST, mine, "settled"), lines)
    refused("append-only", "UPDATE billing_correction SET reason = 'x'")
    refused("append-only", "DELETE FROM billing_correction")
    refused("append-only", "SET LOCAL billing.guard_truncate = 'on'", "TRUNCATE billing_correction")


def test_a_hold_moved_without_an_attempt_or_with_another_verdict_or_grant(books: dict[str, int]) -> None:
    change = "UPDATE billing_hold SET {} WHERE state = 'open'"
    for terms in ("max_tokens = 9999", "max_prompt_tokens = 0", "adapter = 'x'", "gateway_id = id"):
        refused("terms of hold", change.format(terms))
    for moved in ("replica_id = id", "base = 'x'", "attempt = attempt + 2, replica_id = id", "attempt = 0"):
        refused("next attempt alone", change.format(moved))
    verdict = change.format("delivered_tokens = 5, verdict_at = now()")
    refused("next attempt alone", verdict, change.format("attempt = attempt + 1, replica_id = id"))
    refused("verdict on hold", verdict, change.format("delivered_tokens = 6"))
    refused("verdict on hold", verdict, change.format("delivered_tokens = NULL, verdict_at = NULL"))
    refused("billing_hold_verdict_fits", change.format("delivered_tokens = 5"))
    refused("billing_hold_verdict_fits", change.format("delivered_tokens = -1, verdict_at = now()"))
    for started in ({"attempt": "2"}, {"delivered_tokens": "5", "verdict_at": "now()"}):
        refused("starts open, at its first attempt", copy_of_open_hold(**started))


def test_a_budget_that_is_negative(books: dict[str, int]) -> None:
    key = (
        "INSERT INTO accounts_apikey (id, organization_id, name, prefix, digest, scopes, created_at) "
        "SELECT gen_random_uuid(), organization_id, 'k', 'p', '', '{}', now() FROM billing_account WHERE id = "
        f"{books['customer']}"
    )
    node = (
        "INSERT INTO billing_budgetnode (id, organization_id, kind, api_key_id, path, {}) "
        "SELECT gen_random_uuid(), organization_id, 'key', id, '{{}}', -1 FROM accounts_apikey"
    )
    refused("billing_budget_limits_not_negative", key, node.format("monthly_limit_nano_usd"))
    refused("billing_budget_limits_not_negative", key, node.format("end_user_daily_limit_nano_usd"))
    refused("billing_budget_node_not_negative", key, node.format("held_nano_usd"))


def test_top_ups_outside_the_range_or_credited_without_a_transaction(books: dict[str, int]) -> None:
    top_up = (
        "INSERT INTO billing_topup (id, organization_id, amount_cents, state, checkout_url) SELECT gen_random_uuid(), "
        "organization_id, {}, '{}', '' FROM billing_account WHERE id = " + str(books["customer"])
    )
    refused("amount_range", top_up.format(99, "created"))
    refused("amount_range", top_up.format(1_000_001, "created"))
    refused("credited_has_transaction", top_up.format(100, "credited"))
