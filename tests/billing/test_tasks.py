"""Background work on money: outbox, partitions, the ledger check."""

from __future__ import annotations

import logging
from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import connection
from django.utils import timezone

from billing import tasks
from billing.models import Incident, Outbox, Usage
from tests.billing.support import hold_request, make_organization, place, settle
from tests.database import as_superuser

pytestmark = pytest.mark.django_db


def predict(organization, creator):
    request = place(hold_request(organization, creator))
    settle(request.prediction_id)
    return request.prediction_id


def test_messages_that_were_told_go_after_a_week_and_others_never() -> None:
    buyer = make_organization()

    def note(*keys: str) -> None:
        for key in keys:
            payload = {"organization_id": str(buyer.pk)}
            Outbox.objects.create(topic=Outbox.Topic.TOP_UP_CREDITED, key=key, payload=payload)
        Outbox.objects.exclude(key="untold").update(announced_at=timezone.now())

    note("a", "b", "c", "untold", "d", "e")
    assert tasks.clear_outbox() == 0 and Outbox.objects.count() == 6
    with as_superuser():
        Outbox.objects.update(created_at=timezone.now() - tasks.OUTBOX_KEPT - timedelta(minutes=1))
    note("young")
    assert tasks.clear_outbox() == 5
    assert set(Outbox.objects.values_list("key", flat=True)) == {"untold", "young"}


def partitions() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'billing_usage'::regclass")
        return {name for (name,) in cursor.fetchall()}


def test_partitions_exist_for_the_months_to_come_also_across_a_year(time_machine) -> None:
    time_machine.move_to(datetime(2031, 11, 30, 23, 59, tzinfo=UTC))
    tasks.create_usage_partitions()
    tasks.create_usage_partitions()
    months = {"2031_11", "2031_12", "2032_01", "2032_02"}
    assert {f"billing_usage_{month}" for month in months} <= partitions()


def test_a_month_without_partition_loses_no_usage_and_is_left_where_it_is() -> None:
    predict(make_organization(10_000), make_organization())
    row = Usage.objects.get()
    with as_superuser(), connection.cursor() as cursor:
        columns = [field.column for field in Usage._meta.concrete_fields if field.column]
        chosen = ", ".join("'2040-05-31T23:00Z'" if name == "created_at" else name for name in columns)
        # A prediction is posted to the month in which it is settled; with the triggers off it can be another one.
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(f"INSERT INTO billing_usage ({', '.join(columns)}) SELECT {chosen} FROM billing_usage")
        cursor.execute("SET LOCAL session_replication_role = origin")
        cursor.execute("SELECT count(*) FROM billing_usage_default")
        assert cursor.fetchone() == (1,)
        cursor.execute("SELECT billing_create_usage_partition(%s)", [date(2040, 5, 1)])
        assert cursor.fetchone() == (False,)
        cursor.execute("SELECT billing_create_usage_partition(%s)", [date(2040, 6, 1)])
        assert cursor.fetchone() == (True,)
    assert Usage.objects.filter(prediction_id=row.prediction_id).count() == 2


def test_books_that_agree_open_no_incident() -> None:
    predict(make_organization(10_000), make_organization())
    tasks.check_ledger()
    assert Incident.objects.count() == 0


def test_books_that_disagree_are_an_error_and_one_open_incident(caplog: pytest.LogCaptureFixture) -> None:
    buyer, creator = make_organization(10_000), make_organization()
    predict(buyer, creator)
    with as_superuser(), connection.cursor() as cursor:
        # Only with the triggers off can the books be made wrong at all.
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE billing_account DISABLE TRIGGER USER")
        cursor.execute("UPDATE billing_account SET posted = posted + 5 WHERE kind = 'creator_reserve'")
        cursor.execute("UPDATE billing_account SET held = held + 7 WHERE kind = 'customer_credit' AND posted > 0")
        cursor.execute("ALTER TABLE billing_account ENABLE TRIGGER USER")
    with caplog.at_level(logging.ERROR):
        tasks.check_ledger()
        tasks.check_ledger()
    kinds = sorted(Incident.objects.values_list("kind", flat=True))
    assert kinds == ["balance_cache", "held_cache"]
    assert "ledger check failed" in caplog.text
