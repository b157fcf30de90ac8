"""Paid credit by model, week, organization and lot: promotional credit counts nowhere, corrections are taken off."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone

import billing.migrations
from billing.models import Lot, PaidWeek
from billing.rollups.services import roll_up
from billing.services import correct_prediction, credit_promotion, refund_prediction_sync
from devstack.stripe_double.core import StripeDouble
from marketplace.standing.evidence import monday
from tests.billing.conftest import double
from tests.billing.payments import paid, spend
from tests.billing.support import make_organization
from tests.database import as_superuser

__all__ = ["double"]
pytestmark = pytest.mark.django_db
SQL = Path(billing.migrations.__path__[0], "sql", "0027_paid_weeks.sql").read_text()
BACKFILL = SQL[SQL.index("END $$;") + len("END $$;") :]  # the function is before it


def rows() -> list[tuple[object, ...]]:
    return sorted(PaidWeek.objects.values_list("organization_id", "week", "lot_id", "paid_nano_usd"), key=str)


def test_paid_credit_alone_is_counted_after_corrections_and_once(double: StripeDouble) -> None:
    buyer, creator = make_organization(), make_organization()
    credit_promotion(organization=buyer, amount_nano_usd=1_000, reference="gift")
    paid(double, buyer)
    lot = Lot.objects.get(kind=Lot.Kind.PAID)
    this_week = monday(timezone.now().date())
    spend(buyer, creator, 600)
    assert (roll_up(), rows()) == (1, []), "promotional credit is spent first"
    both = spend(buyer, creator, 700)
    whole = spend(buyer, creator, 50)
    assert (roll_up(rows_at_once=1), roll_up()) == (2, 0)
    assert rows() == [(buyer.pk, this_week, lot.pk, 350)]
    refund_prediction_sync(prediction_id=whole, reason="never arrived")
    correct_prediction(prediction_id=both, reason="too slow", amount_nano_usd=100)
    roll_up()
    given_back = sum(rows()[0][3:])  # type: ignore[arg-type]
    assert 200 <= given_back <= 300 and len(rows()) == 1


def test_the_books_of_before_are_counted_as_the_platform_counts(double: StripeDouble) -> None:
    buyer, creator = make_organization(400), make_organization()
    paid(double, buyer)
    given_back = [spend(buyer, creator, 300) for _ in range(4)]
    roll_up()
    refund_prediction_sync(prediction_id=given_back[3], reason="never arrived")
    roll_up()
    counted = rows()
    assert counted
    spend(buyer, creator, 70)  # it waits in the queue
    refund_prediction_sync(prediction_id=given_back[2], reason="never arrived")
    with as_superuser(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM billing_paidweek")
        cursor.execute(BACKFILL)
    assert rows() == counted
