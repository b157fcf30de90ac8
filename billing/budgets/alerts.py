"""Alerts at 50, 80 and 100 % of a limit: found in the nodes' counters, written once; `marketplace.alerts` tells them.

The nodes of end users and runs alert nobody: they may be many, and their own pages show them.
"""

from __future__ import annotations

from datetime import date
from uuid import UUID

from django.db import connection
from django.db.models import QuerySet
from django.db.models.functions import Now
from psycopg import AsyncConnection

from billing.models import BudgetAlert

BATCH = 500  # alerts told in one round

_COLUMNS = """organization_id, node_id, node_kind, node_name, period, period_start, percent, refused, limit_nano_usd,
    spent_nano_usd"""
_LIMITS = """
CROSS JOIN (SELECT (now() AT TIME ZONE 'UTC')::date AS day,
    date_trunc('month', now() AT TIME ZONE 'UTC')::date AS month) today
CROSS JOIN LATERAL (VALUES
    ('day', today.day, n.daily_limit_nano_usd, CASE WHEN n.day < today.day THEN 0 ELSE n.spent_today_nano_usd END),
    ('month', today.month, n.monthly_limit_nano_usd,
        CASE WHEN n.month < today.month THEN 0 ELSE n.spent_this_month_nano_usd END),
    ('total', DATE '1970-01-01', n.total_limit_nano_usd, n.spent_total_nano_usd)
) AS line (period, start, most, spent)
"""
_FIND = f"""
INSERT INTO billing_budgetalert ({_COLUMNS})
SELECT n.organization_id, n.id, n.kind, n.name, line.period, line.start, step.percent, false, line.most, line.spent
FROM billing_budgetnode n {_LIMITS} CROSS JOIN (VALUES (50), (80), (100)) AS step (percent)
WHERE n.kind NOT IN ('end_user', 'run') AND line.most > 0
    AND line.spent::numeric * 100 >= line.most::numeric * step.percent
    AND NOT EXISTS (SELECT 1 FROM billing_budgetalert a
        WHERE (a.node_id, a.period, a.period_start, a.limit_nano_usd, a.percent)
            = (n.id, line.period, line.start, line.most, step.percent))
ON CONFLICT DO NOTHING
"""
NOTE_REFUSAL = f"""
INSERT INTO billing_budgetalert ({_COLUMNS})
SELECT n.organization_id, n.id, n.kind, n.name, line.period, line.start, 100, true, line.most,
    line.spent + n.held_nano_usd
FROM billing_budgetnode n {_LIMITS}
WHERE n.id = %s AND line.period = %s AND n.kind NOT IN ('end_user', 'run') AND line.most > 0
ON CONFLICT DO NOTHING
"""


def find_alerts() -> int:
    """Write an alert for every part of a limit that spending has reached; return how many are new."""
    with connection.cursor() as cursor:
        cursor.execute(_FIND)
        return cursor.rowcount


async def note_refusal(conn: AsyncConnection, node_id: UUID, period: str) -> None:
    """Write the alert that a limit refuses requests: at 100 %, once per period, also where less is spent.

    A limit of one request alerts nobody: the caller was told.
    """
    await conn.execute(NOTE_REFUSAL, (node_id, period))


def new_alerts() -> list[tuple[BudgetAlert, bool]]:
    """Return alerts that nobody was told of, and of each whether it is the highest part of its limit among them."""
    new = list(BudgetAlert.objects.filter(announced_at=None).select_related("organization").order_by("id")[:BATCH])
    highest: dict[tuple[UUID, str, date, int], BudgetAlert] = {}
    for alert in sorted(new, key=lambda one: one.percent):
        highest[alert.node_id, alert.period, alert.period_start, alert.limit_nano_usd] = alert
    told = {alert.pk for alert in highest.values()}
    return [(alert, alert.pk in told) for alert in new]


def claim_alert(alert: BudgetAlert) -> bool:
    """Mark the alert as told, in the caller's transaction. False: another worker has."""
    return bool(BudgetAlert.objects.filter(pk=alert.pk, announced_at=None).update(announced_at=Now()))


def alerts_of(organization_id: UUID) -> QuerySet[BudgetAlert]:
    """Return the organization's alerts, newest first."""
    return BudgetAlert.objects.filter(organization_id=organization_id).order_by("-id")
