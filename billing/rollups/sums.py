"""The two reads of span totals: sums over a period for each subject, and each day's rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any, Literal
from uuid import UUID

from django.db import connection
from django.utils import timezone

from billing.models import SpanTotal
from billing.rollups.spans import FIRST_DAY, Period

Order = Literal["label", "charged", "earned"]
_ORDERS: dict[Order, str] = {
    "label": "label, subject",
    "charged": "charged DESC, subject",
    "earned": "earned DESC, subject",
}


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of one day or period, and subject. `groups` is how many there are in all; the list may have fewer."""

    day: date | None
    subject: UUID
    label: str
    predictions: int
    prompt_tokens: int
    completion_tokens: int
    charged: int
    earned: int
    customers: int
    groups: int


def over_period(
    facet: SpanTotal.Facet, organization_id: UUID, period: Period, *, order: Order = "label", limit: int = 1
) -> list[Sums]:
    """Return the sums of the whole period for each subject, at most `limit`.

    `customers` is right where the period is one block.
    """
    blocks = period.blocks(today=timezone.now().date())
    return _read(
        f"""
        SELECT NULL::date AS day, t.subject, max(t.label) AS label, sum(t.predictions)::bigint,
            sum(t.prompt_tokens)::bigint, sum(t.completion_tokens)::bigint, sum(t.charged_nano_usd)::bigint AS charged,
            sum(t.earned_nano_usd)::bigint AS earned, sum(t.customers)::bigint, count(*) OVER ()
        FROM unnest(%(spans)s::smallint[], %(starts)s::date[]) AS block (span, start)
        JOIN billing_spantotal t ON t.facet = %(facet)s AND t.organization_id = %(organization)s
            AND t.span = block.span AND t.start = block.start
        GROUP BY t.subject ORDER BY {_ORDERS[order]} LIMIT %(limit)s
        """,
        {
            "facet": facet.value,
            "organization": organization_id,
            "spans": [block.days for block in blocks],
            "starts": [block.start for block in blocks],
            "limit": limit,
        },
    )


def by_day(facet: SpanTotal.Facet, organization_id: UUID, period: Period, *, limit: int) -> list[Sums]:
    """Return the sums of each day and subject, newest day first, at most `limit`."""
    return _read(
        """
        SELECT start AS day, subject, label, predictions, prompt_tokens, completion_tokens, charged_nano_usd,
            earned_nano_usd, customers, 0
        FROM billing_spantotal
        WHERE facet = %(facet)s AND organization_id = %(organization)s AND span = 1
            AND start >= %(since)s AND start < %(until)s
        ORDER BY start DESC, label, subject LIMIT %(limit)s
        """,
        {
            "facet": facet.value,
            "organization": organization_id,
            "since": period.since or FIRST_DAY,
            "until": period.until or date.max,
            "limit": limit,
        },
    )


def _read(statement: str, parameters: dict[str, Any]) -> list[Sums]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return [Sums(*row) for row in cursor.fetchall()]
