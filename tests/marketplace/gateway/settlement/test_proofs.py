"""A charge that its stored receipt does not prove is found by the audit; each audit goes on where the last ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.core.cache import cache
from django.db import connection

from billing import services
from billing.models import Hold, Incident, Usage
from billing.statements import STATEMENT_SECONDS
from marketplace.gateway import proofs
from marketplace.gateway.tasks import audit_all_receipts, audit_receipts, sweep_open_holds
from tests.billing.support import conninfo
from tests.database import as_superuser
from tests.marketplace.gateway.settlement.hostile_receipts import LIES
from tests.marketplace.gateway.settlement.sweeping import COST, Consumer, JournalReplica, ago, assert_charged

pytestmark = pytest.mark.django_db


@pytest.fixture
def charged(consumer: Consumer, replica: JournalReplica) -> list[Hold]:
    """Three settled predictions, of a minute ago; of the second only 2 tokens were delivered."""
    holds = [consumer.dispatched(replica.row, delivered=delivered) for delivered in (5, 2, 5)]
    for hold in holds:
        replica.finish(hold)
    assert sweep_open_holds()["settled"] == 3
    assert_charged(consumer, COST, COST, 3)
    change("created_at", ago(minutes=1))
    return holds


def change(column: str, value: Any, hold: Hold | None = None) -> None:
    """Rewrite usage as nothing in the product could."""
    with as_superuser(), connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        where = "" if hold is None else " WHERE prediction_id = %s"
        cursor.execute(f"UPDATE billing_usage SET {column} = %s{where}", [value, *([] if hold is None else [hold.id])])
        cursor.execute("SET session_replication_role = origin")


def test_honest_charges_are_proven(charged: list[Hold]) -> None:
    assert audit_receipts() == 0
    assert not Incident.objects.exists()


@pytest.mark.parametrize(
    ("column", "value"),
    [("prompt_tokens", 11), ("cached_tokens", 3), ("completion_tokens", 4), ("finish_reason", "length")],
)
def test_a_charge_of_other_figures_than_its_receipt_is_an_incident_with_both(
    charged: list[Hold], column: str, value: Any
) -> None:
    change(column, value, charged[0])
    assert audit_receipts() == 1
    incident = Incident.objects.get()
    assert (incident.kind, incident.subject) == ("receipt_mismatch", str(charged[0].id))
    assert incident.detail["charged"][column] == value != incident.detail["proven"][column]
    assert incident.detail["receipt"] and incident.detail["grant"]


def test_a_charge_of_more_than_the_gateway_delivered_is_found_though_the_receipt_has_it(charged: list[Hold]) -> None:
    change("completion_tokens", 5, charged[1])
    assert audit_receipts() == 1
    assert Incident.objects.get().subject == str(charged[1].id)


@pytest.mark.parametrize("name", ["another key", "another adapter", "a later attempt", "more tokens than the ticket"])
def test_a_charge_on_a_receipt_that_the_judge_refuses_is_found(
    charged: list[Hold], replica: JournalReplica, name: str
) -> None:
    lie = LIES[name](replica.claims(charged[2]), replica.key, str(replica.row.pk))
    change("receipt", lie, charged[2])
    assert audit_receipts() == 1
    assert Incident.objects.get().detail["receipt"] == lie


def test_the_receipt_of_another_prediction_proves_nothing(charged: list[Hold]) -> None:
    change("receipt", Usage.objects.get(prediction_id=charged[0].id).receipt, charged[2])
    assert audit_receipts() == 1
    assert Incident.objects.get().detail["rule"] == "prediction"


def test_an_audit_looks_at_new_charges_alone_until_all_are_asked_for(
    charged: list[Hold], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proofs, "PAGE", 2)
    assert audit_receipts() == 0
    change("completion_tokens", 4, charged[0])
    assert audit_receipts() == 0
    audit_all_receipts()
    assert audit_receipts() == 1
    assert audit_receipts() == 0


def test_losing_the_progress_only_repeats_work(charged: list[Hold]) -> None:
    change("completion_tokens", 4, charged[0])
    assert audit_receipts() == 1
    cache.clear()
    assert audit_receipts() == 1
    assert Incident.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_settlement_that_waits_too_long_charges_nothing_and_comes_again(
    consumer: Consumer, replica: JournalReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit passes over charges that commit later than `SETTLED_FOR` after their time: there are none."""
    monkeypatch.setattr(services, "STATEMENT_SECONDS", 0.2)
    assert timedelta(seconds=2 * STATEMENT_SECONDS) < proofs.SETTLED_FOR
    hold = consumer.dispatched(replica.row)
    replica.finish(hold)
    with psycopg.connect(**conninfo()) as other:
        other.execute("SET ROLE none")
        other.execute("SELECT FROM billing_hold WHERE id = %s FOR UPDATE", [hold.id])
        assert sweep_open_holds()["left"] == 1
    assert not Usage.objects.exists()
    monkeypatch.undo()
    assert sweep_open_holds()["settled"] == 1
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("0",)  # the limit is the settlement's, not the connection's


def test_a_charge_that_may_not_have_committed_yet_waits_for_the_next_audit(charged: list[Hold]) -> None:
    change("completion_tokens", 4, charged[0])
    change("created_at", ago(seconds=5))
    assert audit_receipts() == 0
    change("created_at", ago(seconds=60))
    assert audit_receipts() == 1
