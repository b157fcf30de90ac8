"""The SQL that compares holds, usage, entries and refunds of charges (billing/integrity.py).

Each row is kind, subject, rule, found, expected. NEW looks at what the database transactions from %(low)s up to, not
including, %(high)s wrote; UNDATED at rows that keep no number of their
transaction, and at postings and closed months.
"""

_PREDICTION = "CASE WHEN pg_input_is_valid({0}.reference, 'uuid') THEN {0}.reference::uuid END"

NEW = f"""
(WITH holds AS (
    SELECT * FROM billing_hold
    WHERE state = 'settled' AND (settled_in >= %(low)s OR %(low)s = 0) AND (settled_in < %(high)s OR %(low)s = 0)
), ledger AS (
    SELECT * FROM billing_ledgertransaction WHERE database_transaction >= %(low)s AND database_transaction < %(high)s
)
SELECT 'charge_mismatch', 'prediction ' || h.id, 'the usage is that of the hold', coalesce(u.cost_nano_usd, 0),
    h.cost_nano_usd
FROM holds h LEFT JOIN billing_usage u ON u.prediction_id = h.id AND u.created_at = h.closed_at
WHERE (u.cost_nano_usd, u.creator_nano_usd, u.organization_id, u.creator_organization_id, u.model_id, u.replica_id,
       u.input_micro_usd_per_mtok, u.cached_input_micro_usd_per_mtok, u.output_micro_usd_per_mtok,
       u.per_prediction_nano_usd)
    IS DISTINCT FROM
      (h.cost_nano_usd, h.creator_nano_usd, h.organization_id, h.creator_organization_id, h.model_id, h.replica_id,
       h.input_micro_usd_per_mtok, h.cached_input_micro_usd_per_mtok, h.output_micro_usd_per_mtok,
       h.per_prediction_nano_usd)
    OR u.prompt_tokens > h.max_prompt_tokens OR u.completion_tokens > least(h.max_tokens, h.delivered_tokens)
    OR u.cost_nano_usd <> least(h.amount_nano_usd, billing_cost_nano_usd(
        u.input_micro_usd_per_mtok, u.cached_input_micro_usd_per_mtok, u.output_micro_usd_per_mtok,
        u.per_prediction_nano_usd, u.prompt_tokens, u.cached_tokens, u.completion_tokens))
UNION ALL
SELECT 'charge_mismatch', 'prediction ' || h.id, 'the entries are those of the hold', e.charged, h.cost_nano_usd
FROM holds h CROSS JOIN LATERAL (
    SELECT coalesce(-sum(e.amount) FILTER (WHERE e.account_id = h.account_id), 0)::bigint AS charged,
        coalesce(sum(e.amount) FILTER (WHERE a.kind = 'creator_payable'
            AND a.organization_id = h.creator_organization_id), 0)::bigint AS creator,
        coalesce(sum(e.amount) FILTER (WHERE a.kind = 'platform_revenue'), 0)::bigint AS platform
    FROM billing_ledgertransaction t JOIN billing_entry e ON e.transaction_id = t.id
    JOIN billing_account a ON a.id = e.account_id
    WHERE t.kind = 'prediction' AND t.reference = h.id::text
) e
WHERE (e.charged, e.creator, e.platform)
    <> (h.cost_nano_usd, h.creator_nano_usd, h.cost_nano_usd - h.creator_nano_usd)
UNION ALL
SELECT 'charge_mismatch', 'transaction ' || t.id, 'a charge is that of a settled hold',
    coalesce((SELECT -min(amount) FROM billing_entry WHERE transaction_id = t.id), 0), 0::bigint
FROM ledger t WHERE t.kind = 'prediction' AND NOT EXISTS (
    SELECT 1 FROM billing_hold h WHERE h.id = {_PREDICTION.format("t")} AND h.state = 'settled')
UNION ALL
SELECT 'charge_mismatch', 'transaction ' || t.id, 'a reversed charge is a refund',
    coalesce((SELECT max(amount) FROM billing_entry WHERE transaction_id = t.id), 0), 0::bigint
FROM ledger t JOIN billing_ledgertransaction original ON original.id = t.reverses_id AND original.kind = 'prediction'
WHERE NOT EXISTS (SELECT 1 FROM billing_refund r WHERE r.prediction_id = {_PREDICTION.format("original")})
UNION ALL
SELECT 'charge_mismatch', 'transaction ' || t.id, 'a reversal undoes its transaction', sum(off.total)::bigint, 0::bigint
FROM ledger t CROSS JOIN LATERAL (
    SELECT abs(sum(amount)) AS total FROM billing_entry WHERE transaction_id IN (t.id, t.reverses_id)
    GROUP BY account_id HAVING sum(amount) <> 0
) off WHERE t.reverses_id IS NOT NULL GROUP BY t.id
LIMIT 100)
"""

UNDATED = """
(SELECT 'charge_mismatch', 'prediction ' || u.prediction_id, 'usage is that of a settled hold', u.cost_nano_usd,
    0::bigint
FROM billing_usage u LEFT JOIN billing_hold h
    ON h.id = u.prediction_id AND h.state = 'settled' AND h.closed_at = u.created_at
WHERE h.id IS NULL
UNION ALL
SELECT 'charge_mismatch', 'prediction ' || r.prediction_id, 'a refund reverses a charge', 0::bigint,
    coalesce(h.cost_nano_usd, 0)
FROM billing_refund r JOIN billing_hold h ON h.id = r.prediction_id
WHERE h.state <> 'settled' OR (h.cost_nano_usd > 0 AND NOT EXISTS (
    SELECT 1 FROM billing_ledgertransaction o JOIN billing_ledgertransaction t ON t.reverses_id = o.id
    WHERE o.kind = 'prediction' AND o.reference = r.prediction_id::text))
UNION ALL
SELECT 'posting_mismatch', 'account ' || p.account_id, 'a posting is that of its entry', sum(p.amount)::bigint,
    coalesce(sum(e.amount), 0)::bigint
FROM billing_posting p
LEFT JOIN billing_entry e ON e.transaction_id = p.transaction_id AND e.account_id = p.account_id
WHERE e.amount IS DISTINCT FROM p.amount GROUP BY p.account_id
UNION ALL
SELECT 'posting_mismatch', 'account ' || last.account_id, 'a balance is the sum of its postings', last.balance,
    (SELECT sum(amount) FROM billing_posting p WHERE p.account_id = last.account_id)::bigint
FROM (SELECT DISTINCT ON (account_id) account_id, balance FROM billing_posting ORDER BY account_id, sequence DESC) last
WHERE last.balance <> (SELECT sum(amount) FROM billing_posting p WHERE p.account_id = last.account_id)
UNION ALL
SELECT 'posting_mismatch', 'account ' || b.account_id, 'a closed month is the sum of its postings',
    b.closing - b.opening, coalesce(sum(p.amount), 0)::bigint
FROM billing_periodbalance b LEFT JOIN billing_posting p ON p.account_id = b.account_id AND p.period = b.period
GROUP BY b.account_id, b.period, b.opening, b.closing HAVING b.closing - b.opening <> coalesce(sum(p.amount), 0)
LIMIT 100)
"""
