"""Consumption and earnings of a month, from the postings of that month: they sum to the ledger's figures exactly.

A prediction counts to the month that its entries were posted to, and so does each correction of it. Amounts are
nano-dollars. These are questions of a month's close, asked once for each organization; pages never ask them.

Names come from holds: a correction may be of a prediction whose usage was dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any
from uuid import UUID

from django.db import connection

from marketplace.accounts.models import Organization

NameVersions = Callable[[Iterable[UUID]], Mapping[UUID, int]]
_name_versions: NameVersions = lambda _ids: {}  # noqa: E731  set by the app that knows versions


def use_version_numbers(name_versions: NameVersions) -> None:
    """Let papers print versions by number: `name_versions` returns the number of each version that it knows."""
    global _name_versions
    _name_versions = name_versions


@dataclass(frozen=True, slots=True)
class Consumed:
    """The usage of one version by one organization in one latency class."""

    model: str  # org/slug@3
    latency_class: str
    predictions: int
    prompt_tokens: int
    completion_tokens: int
    charged_nano_usd: int
    given_back_nano_usd: int  # corrections


@dataclass(frozen=True, slots=True)
class PaidWith:
    """The credit that paid for a month's consumption, less what was given back."""

    prepaid_nano_usd: int
    promotional_nano_usd: int


@dataclass(frozen=True, slots=True)
class Earned:
    """The earnings of one payee by one version in one latency class from the customers of one country."""

    model: str
    latency_class: str
    country: str  # of the customers' billing profiles; empty: not stated
    predictions: int
    paid_nano_usd: int  # by the customers, less what was given back
    fee_nano_usd: int  # of it, the platform's
    earned_nano_usd: int  # of it, this payee's

    @property
    def others_nano_usd(self) -> int:
        """Return the part of other payees, such as the model that this one is derived from."""
        return self.paid_nano_usd - self.fee_nano_usd - self.earned_nano_usd


_CONSUMED = """
SELECT h.model_name, h.version_id, h.latency_class, count(*) FILTER (WHERE t.id = original.id) AS predictions,
    coalesce(sum(u.prompt_tokens), 0)::bigint AS prompt_tokens,
    coalesce(sum(u.completion_tokens), 0)::bigint AS completion_tokens,
    coalesce(-sum(p.amount) FILTER (WHERE t.id = original.id), 0)::bigint AS charged,
    coalesce(sum(p.amount) FILTER (WHERE t.id <> original.id), 0)::bigint AS given_back
FROM billing_account a JOIN billing_posting p ON p.account_id = a.id AND p.period = %(month)s
JOIN billing_ledgertransaction t ON t.id = p.transaction_id
JOIN billing_ledgertransaction original ON original.id = coalesce(t.corrects_id, t.id) AND original.kind = 'prediction'
JOIN billing_hold h ON h.id = original.reference::uuid
LEFT JOIN billing_usage u ON u.prediction_id = h.id AND u.created_at = h.closed_at AND t.id = original.id
WHERE a.organization_id = %(organization)s AND a.kind = 'customer_credit'
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
_PAID_WITH = """
SELECT coalesce(-sum(e.amount) FILTER (WHERE l.kind = 'paid'), 0)::bigint,
    coalesce(-sum(e.amount) FILTER (WHERE l.kind = 'promotional'), 0)::bigint
FROM billing_account a JOIN billing_posting p ON p.account_id = a.id AND p.period = %(month)s
JOIN billing_ledgertransaction t ON t.id = p.transaction_id
JOIN billing_ledgertransaction original ON original.id = coalesce(t.corrects_id, t.id) AND original.kind = 'prediction'
JOIN billing_entry e ON e.transaction_id = t.id AND e.account_id = a.id JOIN billing_lot l ON l.id = e.lot_id
WHERE a.organization_id = %(organization)s AND a.kind = 'customer_credit'
"""
_EARNED = """
WITH mine AS (
    SELECT p.transaction_id, sum(p.amount) AS earned
    FROM billing_account a JOIN billing_accountkind k ON k.code = a.kind AND k.family = 'creator'
    JOIN billing_posting p ON p.account_id = a.id AND p.period = %(month)s
    WHERE a.organization_id = %(organization)s GROUP BY p.transaction_id
)
SELECT h.model_name, h.version_id, h.latency_class, coalesce(profile.country, '') AS country,
    count(*) FILTER (WHERE t.id = original.id) AS predictions,
    sum(whole.paid)::bigint AS paid, sum(whole.fee)::bigint AS fee, sum(mine.earned)::bigint AS earned
FROM mine JOIN billing_ledgertransaction t ON t.id = mine.transaction_id
JOIN billing_ledgertransaction original ON original.id = coalesce(t.corrects_id, t.id) AND original.kind = 'prediction'
JOIN billing_hold h ON h.id = original.reference::uuid
LEFT JOIN billing_billingprofile profile ON profile.organization_id = h.organization_id
CROSS JOIN LATERAL (
    SELECT coalesce(-sum(e.amount) FILTER (WHERE a.kind = 'customer_credit'), 0) AS paid,
        coalesce(sum(e.amount) FILTER (WHERE a.kind = 'platform_revenue'), 0) AS fee
    FROM billing_entry e JOIN billing_account a ON a.id = e.account_id WHERE e.transaction_id = t.id
) whole
GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
"""


def consumed(organization: Organization, month: date) -> list[Consumed]:
    """Return what `organization` used in a month, by version and latency class."""
    rows = _rows(_CONSUMED, organization, month)
    names = _names(rows)
    return [Consumed(name, *row[2:]) for name, row in zip(names, rows, strict=True)]


def paid_with(organization: Organization, month: date) -> PaidWith:
    """Return which credit paid for it."""
    ((prepaid, promotional),) = _rows(_PAID_WITH, organization, month)
    return PaidWith(prepaid, promotional)


def earned(organization: Organization, month: date) -> list[Earned]:
    """Return what `organization` earned in a month, by version, latency class and customers' country."""
    rows = _rows(_EARNED, organization, month)
    names = _names(rows)
    return [Earned(name, *row[2:]) for name, row in zip(names, rows, strict=True)]


def _rows(sql: str, organization: Organization, month: date) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, {"organization": organization.pk, "month": month})
        return list(cursor.fetchall())


def _names(rows: list[tuple[Any, ...]]) -> list[str]:
    numbers = _name_versions({row[1] for row in rows if row[1] is not None})
    return [f"{row[0]}@{numbers[row[1]]}" if row[1] in numbers else str(row[0]) for row in rows]
