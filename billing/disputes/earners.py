"""Earners of the credit of one lot: the payees of the predictions that it paid for. Amounts are nano-dollars."""

from __future__ import annotations

from uuid import UUID

from django.db import connection

from billing.models import Lot

# Per prediction: what the lot paid of it, after corrections. A payee's part of that is in proportion to its part of
# what is left of the charge, rounded down; the platform has the rest. The amount is divided by these sums, by largest
# remainder.
_EARNED = """
WITH drawn AS (
    SELECT coalesce(t.corrects_id, t.id) AS charge, -sum(e.amount) AS paid
    FROM billing_entry e JOIN billing_ledgertransaction t ON t.id = e.transaction_id
    LEFT JOIN billing_ledgertransaction original ON original.id = t.corrects_id
    WHERE e.lot_id = %(lot)s AND coalesce(original.kind, t.kind) = 'prediction'
    GROUP BY 1 HAVING sum(e.amount) < 0
), charged AS (
    SELECT charge, paid, charge AS transaction_id FROM drawn
    UNION ALL
    SELECT d.charge, d.paid, t.id FROM drawn d JOIN billing_ledgertransaction t ON t.corrects_id = d.charge
), party AS (
    SELECT c.paid, a.organization_id, sum(e.amount) AS part, sum(sum(e.amount)) OVER (PARTITION BY c.charge) AS whole
    FROM charged c JOIN billing_entry e ON e.transaction_id = c.transaction_id
    JOIN billing_account a ON a.id = e.account_id AND a.kind <> 'customer_credit'
    GROUP BY c.charge, c.paid, a.organization_id
), earned AS (
    SELECT organization_id, sum(div(paid * part, whole)) AS weight
    FROM party WHERE organization_id IS NOT NULL AND whole > 0 GROUP BY organization_id
), weighed AS (
    SELECT organization_id, weight FROM earned WHERE weight > 0
    UNION ALL
    SELECT NULL, (SELECT sum(paid) FROM drawn) - coalesce((SELECT sum(weight) FROM earned), 0)
), due AS (
    SELECT *, least(%(amount)s::numeric, sum(weight) OVER ()) AS amount, nullif(sum(weight) OVER (), 0) AS total
    FROM weighed WHERE weight IS NOT NULL
), turned AS (
    SELECT organization_id, div(weight * amount, total) AS base,
        amount - sum(div(weight * amount, total)) OVER () AS left_over,
        row_number() OVER (ORDER BY mod(weight * amount, total) DESC, organization_id) AS turn
    FROM due WHERE total > 0
)
SELECT organization_id, (base + CASE WHEN turn <= left_over THEN 1 ELSE 0 END)::bigint FROM turned
"""


def earned_with(lot: Lot, amount: int) -> dict[UUID | None, int]:
    """Divide `amount` among those who earned with the lot, or what was spent of it if that is less.

    The platform's own part has no organization. Read it under the lock of the lot's account.
    """
    with connection.cursor() as cursor:
        cursor.execute(_EARNED, {"lot": lot.pk, "amount": amount})
        return dict(cursor.fetchall())
