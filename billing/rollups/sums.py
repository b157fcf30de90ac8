"""The two reads of span totals: sums over a period for each subject, and each day's rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any, Literal
from uuid import UUID

from django.db import connection
from django.utils import timezone

from billing.models import SpanTotal
from billing.rollups.places import Place
from billing.rollups.spans import FIRST_DAY, Period

Order = Literal["label", "charged", "earned"]
_KEYS: dict[Order, tuple[str, str]] = {  # of one row, and of the rows of a subject
    "label": ("t.label", "max(t.label)"),
    "charged": ("-t.charged_nano_usd", "-sum(t.charged_nano_usd)::bigint"),
    "earned": ("-t.earned_nano_usd", "-sum(t.earned_nano_usd)::bigint"),
}
_ROWS = """
    JOIN billing_spantotal t ON t.facet = %(facet)s AND t.organization_id = %(organization)s
        AND t.span = block.span AND t.start = block.start
"""


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of one day or period, and subject. `groups` is how many there are in all, or 0; the list may have fewer."""

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
    facet: SpanTotal.Facet,
    organization_id: UUID,
    period: Period,
    *,
    order: Order = "label",
    limit: int = 1,
    after: Place | None = None,
) -> list[Sums]:
    """Return the sums of the whole period for each subject, at most `limit` of them behind the place `after`.

    `customers` is right where the period is one block. All subjects are put in order by one number of each; the other
    sums are made for those that are returned. A list by what was charged has no places.
    """
    blocks = period.blocks(today=timezone.now().date())
    alone = len(blocks) == 1  # a subject has one row then
    key = _KEYS[order][0 if alone else 1]
    place = after or Place()
    return _read(
        f"""
        WITH block AS MATERIALIZED (SELECT * FROM unnest(%(spans)s::smallint[], %(starts)s::date[]) AS b (span, start)),
        ranked AS MATERIALIZED (
            SELECT t.subject, {key} AS key FROM block {_ROWS} {"" if alone else "GROUP BY t.subject"}
        ), chosen AS MATERIALIZED (
            SELECT subject, key, (SELECT count(*) FROM ranked) AS groups FROM ranked
            {"WHERE (key, subject) > (%(key)s, %(subject)s)" if after else ""}
            ORDER BY key, subject LIMIT %(limit)s
        )
        SELECT NULL::date, t.subject, max(t.label), sum(t.predictions)::bigint, sum(t.prompt_tokens)::bigint,
            sum(t.completion_tokens)::bigint, sum(t.charged_nano_usd)::bigint, sum(t.earned_nano_usd)::bigint,
            sum(t.customers)::bigint, max(chosen.groups)
        FROM chosen CROSS JOIN block {_ROWS} AND t.subject = chosen.subject
        GROUP BY t.subject, chosen.key ORDER BY chosen.key, t.subject
        """,
        {
            "facet": facet.value,
            "organization": organization_id,
            "spans": [block.days for block in blocks],
            "starts": [block.start for block in blocks],
            "limit": limit,
            "key": place.name if order == "label" else -place.earned,
            "subject": place.subject,
        },
    )


def by_day(
    facet: SpanTotal.Facet, organization_id: UUID, period: Period, *, limit: int, after: Place | None = None
) -> list[Sums]:
    """Return the sums of each day and subject, newest day first, at most `limit` behind the place `after`."""
    behind = "AND start <= %(day)s AND (start < %(day)s OR (label, subject) > (%(name)s, %(subject)s))"
    place = after or Place()
    return _read(
        f"""
        SELECT start AS day, subject, label, predictions, prompt_tokens, completion_tokens, charged_nano_usd,
            earned_nano_usd, customers, 0
        FROM billing_spantotal
        WHERE facet = %(facet)s AND organization_id = %(organization)s AND span = 1
            AND start >= %(since)s AND start < %(until)s {behind if after else ""}
        ORDER BY start DESC, label, subject LIMIT %(limit)s
        """,
        {
            "facet": facet.value,
            "organization": organization_id,
            "since": period.since or FIRST_DAY,
            "until": period.until or date.max,
            "limit": limit,
            "day": place.day,
            "name": place.name,
            "subject": place.subject,
        },
    )


def _read(statement: str, parameters: dict[str, Any]) -> list[Sums]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return [Sums(*row) for row in cursor.fetchall()]
