"""Retention of single predictions: months that are old enough are dropped, and only their sums are left.

The database decides (`billing_drop_usage`): a month goes when it is closed and counted, its papers are issued and its
receipts published, and nothing is open. Holds and entries stay, so that a later correction finds what it needs.
"""

from __future__ import annotations

from datetime import date
from uuid import UUID

from django.db import connection
from django.db.models import Max
from django.utils import timezone

from billing.models import DroppedUsage, Hold
from marketplace.accounts.models import Organization

_PARTITIONS = """
SELECT to_date(right(c.relname, 7), 'YYYY_MM') FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'billing_usage'::regclass AND c.relname ~ '^billing_usage_[0-9]{4}_[0-9]{2}$'
ORDER BY 1
"""


def drop_old_usage(*, months_kept: int) -> dict[date, str]:
    """Drop the predictions of months before the last `months_kept` whole ones; return what became of each month.

    An outcome is "dropped", or the reason why the month is still there (`billing_drop_usage` lists them).
    """
    first_kept = _months_before(timezone.now().date(), months_kept)
    with connection.cursor() as cursor:
        cursor.execute(_PARTITIONS)
        months = [month for (month,) in cursor.fetchall() if month < first_kept]
    return {month: drop_usage(month) for month in months}


def drop_usage(month: date) -> str:
    """Drop the single predictions of one month if nothing needs them any more; return the outcome."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT billing_drop_usage(%s)", [month])
        outcome: str = cursor.fetchone()[0]
    return outcome


def details_kept_since() -> date | None:
    """Return the first day after the last month whose single predictions were dropped, or None if none was."""
    last = DroppedUsage.objects.aggregate(last=Max("month"))["last"]
    return None if last is None else _months_before(last, -1)


def is_dropped(organization: Organization, prediction_id: UUID) -> bool:
    """Return whether this is a charge of `organization` of which only the sums are left."""
    settled = Hold.objects.filter(organization_id=organization.pk, state=Hold.State.SETTLED, pk=prediction_id)
    closed_at = settled.values_list("closed_at", flat=True).first()
    return closed_at is not None and DroppedUsage.objects.filter(month=closed_at.date().replace(day=1)).exists()


def _months_before(day: date, months: int) -> date:
    """Return the first day of the month so many months before that of `day`."""
    number = day.year * 12 + day.month - 1 - months
    return date(number // 12, number % 12 + 1, 1)
