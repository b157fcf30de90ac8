"""The SQL of the check of disputed payments: frozen credit is that of the disputes that no bank has decided."""

FROZEN = """
SELECT 'payment_mismatch', 'disputes of ' || coalesce(a.organization_id, d.organization_id),
    'credit under dispute is that of open disputes', coalesce(a.posted, 0)::bigint, coalesce(d.frozen, 0)::bigint
FROM (SELECT organization_id, posted FROM billing_account WHERE kind = 'dispute') a
FULL JOIN (
    SELECT t.organization_id, sum(d.frozen_nano_usd)::bigint AS frozen
    FROM billing_dispute d JOIN billing_topup t ON t.id = d.top_up_id WHERE d.state = 'open' GROUP BY t.organization_id
) d ON d.organization_id = a.organization_id
WHERE coalesce(a.posted, 0) <> coalesce(d.frozen, 0)
"""
