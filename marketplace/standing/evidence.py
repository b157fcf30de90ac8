"""The evidence about listed models, read from the books: sums of billing, evaluations, cards and memberships.

Each read is one statement over sums. Single predictions are read nowhere but for those that the platform lost, which
an index finds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection

from billing.models import SpanTotal
from billing.rollups.spans import blocks_of
from marketplace.catalog.rollouts import DEFAULT_FIRST_SQL
from marketplace.standing.formula import (
    CARD_RIPENS,
    HALF_LIFE_WEEKS,
    MEMORY_WEEKS,
    MIN_ROWS,
    MIN_WEEKS,
    UPTIME_DAYS,
    Evidence,
    Payer,
)
from marketplace.standing.links import unite

# Reasons of released holds where neither the caller nor the model is at fault (marketplace/gateway). Callers can bring
# about every other reason for nothing, so they would be a way to push a competitor down.
LOST_REASONS = (
    "lost while answering",
    "a fault of the gateway",
    "no receipt of a delivered token",
    "the receipt was refused",
    "its replica gave no receipt in time",
    "its replica does not know of it",
    "its replica is unknown",
)

# The ties of `billing_tied`, which knows one organization's: here those of all are read at once.
_LINKED = """
SELECT array_agg(DISTINCT organization_id) FROM billing_carduse GROUP BY fingerprint HAVING count(*) > 1
UNION ALL
SELECT array_agg(DISTINCT m.organization_id) FROM accounts_membership m LEFT JOIN accounts_user u ON u.id = m.user_id
GROUP BY coalesce(regexp_replace(lower(u.email), '\\+[^@]*@', '@'), m.user_id::text)
HAVING count(DISTINCT m.organization_id) > 1
"""

# A payer is an organization, or all that belong with it. Money counts that came from a paid lot, whose card has been
# known for a while, whose payment no bank has taken back, and that was not spent on a model of the payer's own.
_PAYERS = """
WITH linked AS MATERIALIZED (
    SELECT * FROM unnest(%(organizations)s::uuid[], %(stand_for)s::uuid[]) AS l (organization_id, payer)
), ripe AS (
    SELECT fingerprint FROM billing_carduse GROUP BY fingerprint HAVING min(first_used_at) <= %(ripe_since)s
), lot AS MATERIALIZED (
    SELECT t.id AS top_up_id, l.id FROM billing_topup t
    JOIN ripe ON ripe.fingerprint = t.card_fingerprint
    JOIN billing_lot l ON l.transaction_id = t.ledger_transaction_id AND l.kind = 'paid'
    WHERE NOT EXISTS (
        SELECT 1 FROM billing_dispute d WHERE d.top_up_id = t.id AND d.state <> 'won' AND d.status NOT LIKE 'warning%%'
    )
), spent AS MATERIALIZED (
    SELECT p.model_id, coalesce(buyer.payer, p.organization_id) AS payer, p.week, sum(p.paid_nano_usd) AS paid
    FROM billing_paidweek p
    JOIN lot ON lot.id = p.lot_id
    JOIN catalog_standing s ON s.model_id = p.model_id
    JOIN catalog_model m ON m.id = p.model_id
    LEFT JOIN linked buyer ON buyer.organization_id = p.organization_id
    LEFT JOIN linked seller ON seller.organization_id = m.organization_id
    WHERE p.week > %(first_week)s
        AND coalesce(buyer.payer, p.organization_id) <> coalesce(seller.payer, m.organization_id)
    GROUP BY 1, 2, 3 HAVING sum(p.paid_nano_usd) > 0
), payer AS MATERIALIZED (
    SELECT model_id, payer, count(*) AS weeks,
        round(sum(paid::float8 * power(0.5::float8, (%(this_week)s::date - week) / 7 / %(half_life)s::float8)))::bigint
            AS paid
    FROM spent GROUP BY 1, 2
), week AS (
    SELECT model_id, count(DISTINCT s.week) AS weeks FROM spent s JOIN payer p USING (model_id, payer)
    WHERE p.weeks >= %(min_weeks)s GROUP BY 1
)
SELECT p.model_id, array_agg(p.weeks), array_agg(p.paid), coalesce(max(week.weeks), 0)
FROM payer p LEFT JOIN week USING (model_id) GROUP BY 1
"""

# The version that the model's name means is judged.
_EVALUATIONS = f"""
SELECT meant.model_id, e.correct, e.rows FROM (
    SELECT DISTINCT ON (v.model_id) v.model_id, v.id FROM catalog_version v
    JOIN catalog_standing s ON s.model_id = v.model_id
    JOIN catalog_model m ON m.id = v.model_id
    WHERE v.state = 'published' ORDER BY v.model_id, {DEFAULT_FIRST_SQL}
) meant CROSS JOIN LATERAL (
    SELECT correct, rows FROM catalog_evaluation e
    WHERE e.version_id = meant.id AND e.rows >= %(min_rows)s ORDER BY e.id DESC LIMIT 1
) e
"""

# A model's calls are those of its creator's earnings from it. They are kept by spans of days: a few rows per model.
_SERVED = """
SELECT s.model_id, sum(t.predictions)::bigint
FROM catalog_standing s JOIN catalog_model m ON m.id = s.model_id
CROSS JOIN unnest(%(spans)s::smallint[], %(starts)s::date[]) AS block (span, start)
JOIN billing_spantotal t ON t.facet = %(facet)s AND t.organization_id = m.organization_id AND t.span = block.span
    AND t.start = block.start AND t.subject = s.model_id
GROUP BY s.model_id
"""

_LOST = """
SELECT h.model_id, count(*) FROM billing_hold h
WHERE h.state = 'released' AND h.closed_at >= %(since)s AND h.close_reason = ANY (%(reasons)s)
GROUP BY h.model_id
"""


@dataclass(frozen=True, slots=True)
class Found:
    """The evidence about one model, and in how many weeks its payers paid."""

    evidence: Evidence = field(default_factory=Evidence)
    weeks: int = 0


def read_evidence(*, now: datetime) -> dict[UUID, Found]:
    """Return what is known of listed models; a model of which nothing is known is left out."""
    today = now.date()
    found: dict[UUID, Found] = {}
    for model_id, weeks, paid, all_weeks in _payers(now):
        payers = tuple(Payer(*one) for one in zip(weeks, paid, strict=True))
        found[model_id] = Found(Evidence(payers), all_weeks)
    for model_id, correct, rows in _rows(_EVALUATIONS, {"min_rows": MIN_ROWS}):
        _add(found, model_id, evaluation=(correct, rows))
    since = today - timedelta(days=UPTIME_DAYS - 1)
    blocks = blocks_of(since, None, today=today)
    spans = {
        "facet": SpanTotal.Facet.EARNINGS_MODEL.value,
        "spans": [block.days for block in blocks],
        "starts": [block.start for block in blocks],
    }
    for model_id, served in _rows(_SERVED, spans):
        _add(found, model_id, served=served)
    for model_id, lost in _rows(_LOST, {"since": since, "reasons": list(LOST_REASONS)}):
        _add(found, model_id, lost=lost)
    return found


def linked_organizations() -> dict[UUID, UUID]:
    """Return for each organization that shares a card or a member with another the one that stands for all of them.

    A member is a mailbox: a+1@example.com is a@example.com.
    """
    return unite(group for (group,) in _rows(_LINKED, {}))


def _payers(now: datetime) -> list[tuple[Any, ...]]:
    linked = linked_organizations()
    this_week = monday(now.date())
    return _rows(
        _PAYERS,
        {
            "organizations": list(linked),
            "stand_for": list(linked.values()),
            "ripe_since": now - CARD_RIPENS,
            "this_week": this_week,
            "first_week": this_week - timedelta(weeks=MEMORY_WEEKS),
            "half_life": HALF_LIFE_WEEKS,
            "min_weeks": MIN_WEEKS,
        },
    )


def monday(day: date) -> date:
    """Return the first day of the day's ISO week."""
    return day - timedelta(days=day.weekday())


def _add(found: dict[UUID, Found], model_id: UUID, **facts: Any) -> None:
    known = found.get(model_id, Found())
    found[model_id] = replace(known, evidence=replace(known.evidence, **facts))


def _rows(statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall()
