"""The checks of the books: each contradiction is found, by the full check and by the incremental one."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from django.db import connection, connections

from billing import tasks
from billing.integrity import find_discrepancies, find_new_discrepancies
from billing.models import Hold, Incident, LedgerCheckpoint
from billing.periods import post_entries
from billing.services import refund_prediction_sync
from billing.statements import SETTLE_HOLDS, settle_parameters
from tests.billing.support import USAGE_COST, charge, hold_request, make_organization, place, settle
from tests.database import behind_the_triggers

pytestmark = pytest.mark.django_db(transaction=True)


def predict() -> Hold:
    request = place(hold_request(make_organization(10_000), make_organization()))
    settle(request.prediction_id)
    return Hold.objects.get(pk=request.prediction_id)


def wait_until_all_is_old() -> None:
    """Wait for the transactions that other tests have open on the same server: the incremental check stops at them."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(settled_in) FROM billing_hold")
        (newest,) = cursor.fetchone()
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint > %s", [newest])
            if cursor.fetchone() == (True,):
                return
            time.sleep(0.02)
    raise AssertionError("a transaction of another test is open for too long")


def damage(*statements: str) -> None:
    """Write as nothing in the product can."""
    with behind_the_triggers() as cursor:
        for statement in statements:
            cursor.execute(statement)


WRONGS = {
    "usage dearer than the hold": (
        "the usage is that of the hold",
        "UPDATE billing_usage SET cost_nano_usd = cost_nano_usd + 5",
    ),
    "tokens that do not make the cost": (
        "the usage is that of the hold",
        "UPDATE billing_usage SET completion_tokens = completion_tokens + 20",
    ),
    "usage beyond the verdict": (
        "the usage is that of the hold",
        "UPDATE billing_hold SET delivered_tokens = 3, verdict_at = now() WHERE state = 'settled'",
    ),
    "usage lost": ("the usage is that of the hold", "DELETE FROM billing_usage"),
    "entries of another cost": (
        "the entries are those of the hold",
        "UPDATE billing_hold SET cost_nano_usd = cost_nano_usd - 1",
    ),
    "charge whose hold is open": (
        "a charge is that of a settled hold",
        "UPDATE billing_hold SET state = 'released', cost_nano_usd = NULL",
    ),
    "rest of a lot changed": ("credit is the sum of its lots", "UPDATE billing_lot SET remaining = remaining + 1"),
    "lot of an entry changed": (
        "the rest is the sum of entries",
        "UPDATE billing_entry SET lot_id = NULL WHERE lot_id IS NOT NULL AND amount < 0",
    ),
    "entry changed": (
        "posted is the sum of entries",
        "UPDATE billing_entry SET amount = amount + 1 WHERE amount = 9",
    ),
}


@pytest.mark.parametrize("wrong", WRONGS)
def test_a_contradiction_is_found_by_both_checks(wrong: str) -> None:
    rule, statement = WRONGS[wrong]
    predict()
    wait_until_all_is_old()
    assert find_discrepancies() == []
    damage(statement)
    assert rule in {found.rule for found in find_discrepancies()}
    assert rule in {found.rule for found in find_new_discrepancies()}


def test_usage_and_corrections_of_nothing_are_found_by_the_full_check() -> None:
    predict()
    damage(
        "INSERT INTO billing_correction (id, prediction_id, amount_nano_usd, reason, transaction_id) "
        "SELECT id, id, cost_nano_usd + 1, 'forged', 1 FROM billing_hold"
    )
    assert [found.rule for found in find_discrepancies()] == ["corrections are those of a charge"]
    damage("DELETE FROM billing_correction")
    assert find_discrepancies() == []
    damage("UPDATE billing_usage SET prediction_id = gen_random_uuid()")
    rules = {found.rule for found in find_discrepancies()}
    assert rules == {"the usage is that of the hold", "usage is that of a settled hold"}


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("UPDATE billing_posting SET amount = amount + 1 WHERE sequence = 1", "a posting is that of its entries"),
        ("UPDATE billing_posting SET balance = balance + 1", "a balance is the sum of its postings"),
        (
            "INSERT INTO billing_periodbalance (account_id, period, opening, closing) "
            "SELECT id, '2020-01-01', 0, 5 FROM billing_account LIMIT 1",
            "a closed month is the sum of its postings",
        ),
    ],
    ids=["amount", "balance", "closed month"],
)
def test_wrong_postings_and_months_are_found_by_the_full_check(statement: str, rule: str) -> None:
    predict()
    post_entries()
    assert find_discrepancies() == []
    damage(statement)
    assert rule in {found.rule for found in find_discrepancies()}


def test_a_corrected_charge_without_its_correction_is_found() -> None:
    hold = predict()
    assert refund_prediction_sync(prediction_id=hold.pk, reason="lost") and find_discrepancies() == []
    damage("DELETE FROM billing_correction")
    (found,) = find_discrepancies()
    assert (found.rule, found.found) == ("a corrected charge has its correction", USAGE_COST)


def test_the_incremental_check_looks_at_each_charge_once_and_the_full_one_at_all() -> None:
    predict()
    wait_until_all_is_old()
    assert find_new_discrepancies() == []
    # The incremental check reads nothing twice; the daily full one finds it.
    damage("DELETE FROM billing_usage")
    assert find_new_discrepancies() == []
    assert [found.rule for found in find_discrepancies()] == ["the usage is that of the hold"]


def test_a_charge_that_commits_late_is_not_skipped() -> None:
    """The settlement of one connection is still open while another settles, commits and is checked."""
    late = place(hold_request(make_organization(10_000), make_organization())).prediction_id
    slow = connections.create_connection("default")
    try:
        slow.set_autocommit(False)
        with slow.cursor() as cursor:
            cursor.execute("SELECT pg_current_xact_id()")  # the oldest transaction that runs
        predict()
        assert find_new_discrepancies() == []
        with slow.cursor() as cursor:
            cursor.execute(SETTLE_HOLDS, settle_parameters([charge(late)]))
            assert cursor.fetchone()[1] == "settled"
        slow.commit()
    finally:
        slow.close()
    wait_until_all_is_old()
    damage(f"DELETE FROM billing_usage WHERE prediction_id = '{late}'")
    assert [found.subject for found in find_new_discrepancies()] == [f"prediction {late}"]


def test_books_restored_into_a_younger_server_are_checked_from_their_beginning() -> None:
    predict()
    wait_until_all_is_old()
    assert find_new_discrepancies() == []
    LedgerCheckpoint.objects.update(through=2**62)
    damage("DELETE FROM billing_usage")
    assert [found.rule for found in find_new_discrepancies()] == ["the usage is that of the hold"]
    assert find_new_discrepancies() == []


@pytest.mark.parametrize("check", [tasks.check_ledger, tasks.check_ledger_in_full], ids=["incremental", "full"])
def test_a_contradiction_is_one_open_incident_with_its_figures(check: Callable[[], None]) -> None:
    hold = predict()
    wait_until_all_is_old()
    damage("DELETE FROM billing_usage")
    check()
    check()
    incident = Incident.objects.get()
    assert (incident.kind, incident.subject) == ("charge_mismatch", f"prediction {hold.pk}")
    assert incident.detail == {
        "rule": "the usage is that of the hold",
        "found_nano_usd": 0,
        "expected_nano_usd": USAGE_COST,
    }
