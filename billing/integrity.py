"""Checks that the books agree with themselves: balances with entries, holds and disputes; holds with usage and entries.

The full check looks at every charge. The incremental one looks at the charges committed since the last, and skips none
that commits late: it goes up to the oldest database transaction that was still running when it began.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction

from billing.charge_checks import NEW, UNDATED
from billing.locks import lock_ledger_checkpoint
from billing.models import Incident
from billing.payment_checks import FROZEN

# One statement, so that all figures come from the same snapshot while predictions go on.
_BALANCES = """
(WITH entries AS (SELECT account_id, sum(amount) AS total FROM billing_entry GROUP BY account_id),
     holds AS (SELECT account_id, sum(amount_nano_usd) AS total FROM billing_hold
               WHERE state = 'open' GROUP BY account_id),
     budgeted AS (SELECT node, sum(amount_nano_usd) AS total FROM billing_hold, unnest(budget_path) AS node
                  WHERE state = 'open' GROUP BY node),
     lots AS (SELECT account_id, sum(remaining) AS total FROM billing_lot GROUP BY account_id),
     filled AS (SELECT lot_id, sum(amount) AS total FROM billing_entry WHERE lot_id IS NOT NULL GROUP BY lot_id),
     free AS (SELECT organization_id, model_id, date_trunc('month', created_at AT TIME ZONE 'UTC')::date AS month,
                  sum(monthly_allowance_nano_usd) AS monthly, sum(introductory_allowance_nano_usd) AS introductory
              FROM billing_hold
              WHERE state = 'open' AND monthly_allowance_nano_usd + introductory_allowance_nano_usd > 0
              GROUP BY organization_id, model_id, month)
SELECT 'ledger_sum', '', 'the entries sum to zero', coalesce(sum(total), 0)::bigint, 0::bigint
    FROM entries HAVING coalesce(sum(total), 0) <> 0
UNION ALL
SELECT 'balance_cache', 'account ' || a.id, 'posted is the sum of entries', a.posted,
    coalesce(e.total, 0)::bigint
    FROM billing_account a LEFT JOIN entries e ON e.account_id = a.id WHERE a.posted <> coalesce(e.total, 0)
UNION ALL
SELECT 'held_cache', 'account ' || a.id, 'held is the sum of open holds', a.held, coalesce(h.total, 0)::bigint
    FROM billing_account a LEFT JOIN holds h ON h.account_id = a.id WHERE a.held <> coalesce(h.total, 0)
UNION ALL
SELECT 'held_cache', 'budget ' || b.id, 'held is the sum of open holds', b.held_nano_usd, coalesce(h.total, 0)::bigint
    FROM billing_budgetnode b LEFT JOIN budgeted h ON h.node = b.id WHERE b.held_nano_usd <> coalesce(h.total, 0)
UNION ALL
SELECT 'held_cache', 'allowance ' || a.organization_id, 'held is the sum of open holds', a.held_nano_usd,
    sum(coalesce(CASE a.kind WHEN 'monthly' THEN f.monthly ELSE f.introductory END, 0))::bigint
    FROM billing_allowance a LEFT JOIN free f ON (f.organization_id, f.model_id) = (a.organization_id, a.model_id)
        AND (a.kind = 'introductory' OR f.month = a.month)
    GROUP BY a.organization_id, a.model_id, a.kind, a.month, a.held_nano_usd
    HAVING a.held_nano_usd <> sum(coalesce(CASE a.kind WHEN 'monthly' THEN f.monthly ELSE f.introductory END, 0))
UNION ALL
SELECT 'balance_cache', 'account ' || a.id, 'credit is the sum of its lots', a.posted, coalesce(l.total, 0)::bigint
    FROM billing_account a LEFT JOIN lots l ON l.account_id = a.id
    WHERE a.kind = 'customer_credit' AND a.posted <> coalesce(l.total, 0)
UNION ALL
SELECT 'balance_cache', 'lot ' || l.id, 'the rest is the sum of entries', l.remaining,
    (l.opening + coalesce(f.total, 0))::bigint
    FROM billing_lot l LEFT JOIN filled f ON f.lot_id = l.id WHERE l.remaining <> l.opening + coalesce(f.total, 0)
LIMIT 100)
"""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """Two figures that must be equal and are not, in nano-dollars; `rule` says why they must."""

    kind: Incident.Kind
    subject: str
    rule: str
    found: int
    expected: int

    @property
    def detail(self) -> dict[str, Any]:
        return {"rule": self.rule, "found_nano_usd": self.found, "expected_nano_usd": self.expected}


def find_discrepancies() -> list[Discrepancy]:
    """Return the figures that do not add up, over all rows; none when the books are right."""
    return _run([_BALANCES, FROZEN, NEW, UNDATED], low=0, high=2**63 - 1)


@transaction.atomic
def find_new_discrepancies() -> list[Discrepancy]:
    """Return what does not add up in the balances, and in the charges that were committed since the last call.

    Calls take turns; the charges of one that is rolled back are looked at by the next.
    """
    checkpoint = lock_ledger_checkpoint()
    with connection.cursor() as cursor:
        # Every database transaction below this one has ended, so the statements that follow see what it committed.
        cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        (ended,) = cursor.fetchone()
    # Books that were restored into another server may have larger numbers than it: all of them are looked at again.
    low = checkpoint.through if checkpoint.through <= ended else 0
    found = _run([_BALANCES, FROZEN, NEW], low=low, high=ended)
    checkpoint.through = ended
    checkpoint.save(update_fields=["through"])
    return found


def _run(checks: list[str], *, low: int, high: int) -> list[Discrepancy]:
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(checks), {"low": low, "high": high})
        return [
            Discrepancy(Incident.Kind(kind), subject, rule, found, expected)
            for kind, subject, rule, found, expected in cursor.fetchall()
        ]
