"""Checks that the books agree with themselves, on one snapshot of the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import connection

from billing.models import Incident

# One statement, so that all figures come from the same snapshot while predictions go on.
_CHECK = """
WITH entries AS (SELECT account_id, sum(amount) AS total FROM billing_entry GROUP BY account_id),
     holds AS (SELECT account_id, sum(amount_nano_usd) AS total FROM billing_hold
               WHERE state = 'open' GROUP BY account_id),
     budgeted AS (SELECT billing_key_line(api_key_id) AS line, sum(amount_nano_usd) AS total FROM billing_hold
                  WHERE state = 'open' AND counts_in_budget GROUP BY line)
SELECT 'ledger_sum', '', coalesce(sum(total), 0)::bigint, 0::bigint FROM entries HAVING coalesce(sum(total), 0) <> 0
UNION ALL
SELECT 'balance_cache', 'account ' || a.id, a.posted, coalesce(e.total, 0)::bigint
    FROM billing_account a LEFT JOIN entries e ON e.account_id = a.id WHERE a.posted <> coalesce(e.total, 0)
UNION ALL
SELECT 'held_cache', 'account ' || a.id, a.held, coalesce(h.total, 0)::bigint
    FROM billing_account a LEFT JOIN holds h ON h.account_id = a.id WHERE a.held <> coalesce(h.total, 0)
UNION ALL
SELECT 'held_cache', 'key ' || b.api_key_id, b.held_nano_usd, coalesce(h.total, 0)::bigint
    FROM billing_keybudget b LEFT JOIN budgeted h ON h.line = b.api_key_id
    WHERE b.held_nano_usd <> coalesce(h.total, 0)
LIMIT 100
"""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """Two figures that must be equal and are not, in nano-dollars."""

    kind: Incident.Kind
    subject: str
    found: int
    expected: int

    @property
    def detail(self) -> dict[str, Any]:
        return {"found_nano_usd": self.found, "expected_nano_usd": self.expected}


def find_discrepancies() -> list[Discrepancy]:
    """Return the figures that do not add up; none when the books are right."""
    with connection.cursor() as cursor:
        cursor.execute(_CHECK)
        return [
            Discrepancy(Incident.Kind(kind), subject, found, expected)
            for kind, subject, found, expected in cursor.fetchall()
        ]
