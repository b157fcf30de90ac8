"""Payouts against the books: what is in transit is the sum of the payouts that are on their way."""

from __future__ import annotations

from django.db import connection

_CONTRADICTIONS = """
SELECT coalesce(a.organization_id, p.organization_id)::text, coalesce(a.posted, 0), coalesce(p.nano, 0)
FROM (SELECT organization_id, posted FROM billing_account WHERE kind = 'payout_in_transit') a
FULL JOIN (
    SELECT organization_id, sum(amount_cents)::bigint * 10000000 AS nano FROM billing_payout
    WHERE state IN ('created', 'transferred', 'paying', 'failed') GROUP BY organization_id
) p ON p.organization_id = a.organization_id
WHERE coalesce(a.posted, 0) <> coalesce(p.nano, 0)
"""


def contradictions() -> list[tuple[str, int, int]]:
    """Return organizations whose account of payouts in transit is not the sum of their open payouts.

    Each comes with both amounts, in nano-dollars. One statement, so that no payout moves between the two sums.
    """
    with connection.cursor() as cursor:
        cursor.execute(_CONTRADICTIONS)
        return [(str(organization), int(posted), int(open_)) for organization, posted, open_ in cursor.fetchall()]
