"""The SQL that compares holds, usage, entries and corrections of charges (billing/integrity.py).

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
LEFT JOIN billing_droppedusage dropped ON dropped.month = date_trunc('month', h.closed_at AT TIME ZONE 'UTC')::date
WHERE dropped.month IS NULL AND (
      (u.cost_nano_usd, u.split_id, u.organization_id, u.creator_organization_id, u.model_id, u.replica_id, u.attempt,
       u.price_id, u.input_micro_usd_per_mtok, u.cached_input_micro_usd_per_mtok, u.output_micro_usd_per_mtok,
       u.per_prediction_nano_usd, u.latency_class, u.class_bps, u.allowance_nano_usd)
    IS DISTINCT FROM
      (h.cost_nano_usd, h.split_id, h.organization_id, h.creator_organization_id, h.model_id, h.replica_id, h.attempt,
       h.price_id, h.input_micro_usd_per_mtok, h.cached_input_micro_usd_per_mtok, h.output_micro_usd_per_mtok,
       h.per_prediction_nano_usd, h.latency_class, h.class_bps, h.allowance_used_nano_usd)
    OR u.prompt_tokens > h.max_prompt_tokens OR u.completion_tokens > least(h.max_tokens, h.delivered_tokens)
    OR u.cost_nano_usd <> least(h.amount_nano_usd, billing_gross_nano_usd(
        u.input_micro_usd_per_mtok, u.cached_input_micro_usd_per_mtok, u.output_micro_usd_per_mtok,
        u.per_prediction_nano_usd, u.class_bps, u.prompt_tokens, u.cached_tokens, u.completion_tokens)
        - u.allowance_nano_usd))
UNION ALL
SELECT 'charge_mismatch', 'prediction ' || due.hold_id, 'the entries are those of the hold',
    coalesce(booked.amount, 0)::bigint, due.amount
FROM (
    SELECT id AS hold_id, organization_id, 'customer' AS family, -cost_nano_usd AS amount
    FROM holds WHERE cost_nano_usd > 0
    UNION ALL
    SELECT share.key, share.organization_id,
        CASE WHEN share.organization_id IS NULL THEN 'platform_revenue' ELSE 'creator' END, sum(share.amount)::bigint
    FROM (SELECT array_agg(id) AS ids, array_agg(split_id) AS splits, array_agg(cost_nano_usd) AS costs FROM holds) h,
        LATERAL billing_shares_of(h.ids, h.splits, h.costs) share
    GROUP BY share.key, share.organization_id
) due FULL JOIN (
    -- By families of accounts: a payee's share was payable at once before there was a reserve.
    SELECT h.id AS hold_id, a.organization_id, k.family, sum(e.amount)::bigint AS amount
    FROM holds h JOIN billing_ledgertransaction t ON t.kind = 'prediction' AND t.reference = h.id::text
    JOIN billing_entry e ON e.transaction_id = t.id JOIN billing_account a ON a.id = e.account_id
    JOIN billing_accountkind k ON k.code = a.kind
    GROUP BY h.id, a.organization_id, k.family
) booked ON booked.hold_id = due.hold_id AND booked.family = due.family
    AND booked.organization_id IS NOT DISTINCT FROM due.organization_id
WHERE booked.amount IS DISTINCT FROM due.amount
UNION ALL
SELECT 'charge_mismatch', 'transaction ' || t.id, 'a charge is that of a settled hold',
    coalesce((SELECT -min(amount) FROM billing_entry WHERE transaction_id = t.id), 0), 0::bigint
FROM ledger t WHERE t.kind = 'prediction' AND NOT EXISTS (
    SELECT 1 FROM billing_hold h WHERE h.id = {_PREDICTION.format("t")} AND h.state = 'settled')
UNION ALL
SELECT 'charge_mismatch', 'transaction ' || t.id, 'a corrected charge has its correction', side.total::bigint,
    coalesce(c.amount_nano_usd, 0)
FROM ledger t JOIN billing_ledgertransaction original ON original.id = t.corrects_id AND original.kind = 'prediction'
CROSS JOIN LATERAL (
    SELECT coalesce(sum(e.amount), 0) AS total FROM billing_entry e JOIN billing_account a ON a.id = e.account_id
    WHERE e.transaction_id = t.id AND a.kind = 'customer_credit'
) side LEFT JOIN billing_correction c ON c.transaction_id = t.id
WHERE c.amount_nano_usd IS DISTINCT FROM side.total
UNION ALL
SELECT 'charge_mismatch', 'transaction ' || t.id, 'a correction takes from who bears it', sum(-e.amount)::bigint,
    0::bigint
FROM ledger t JOIN billing_correction c ON c.transaction_id = t.id AND c.bearer <> 'all'
JOIN billing_entry e ON e.transaction_id = t.id JOIN billing_account a ON a.id = e.account_id
WHERE a.kind <> 'customer_credit' AND a.organization_id IS DISTINCT FROM c.bearer_organization_id GROUP BY t.id
UNION ALL
SELECT 'charge_mismatch', 'transaction ' || t.id, 'corrections are within their original', sum(abs(off.back))::bigint,
    sum(abs(off.moved))::bigint
FROM ledger t CROSS JOIN LATERAL (
    SELECT coalesce(sum(e.amount) FILTER (WHERE e.transaction_id = t.corrects_id), 0) AS moved,
        coalesce(sum(e.amount) FILTER (WHERE e.transaction_id <> t.corrects_id), 0) AS back
    FROM billing_entry e JOIN billing_account a ON a.id = e.account_id JOIN billing_accountkind k ON k.code = a.kind
    WHERE e.transaction_id = t.corrects_id
        OR e.transaction_id IN (SELECT id FROM billing_ledgertransaction WHERE corrects_id = t.corrects_id)
    GROUP BY a.organization_id, k.family
) off
WHERE t.corrects_id IS NOT NULL AND (sign(off.moved) * off.back > 0 OR abs(off.back) > abs(off.moved)) GROUP BY t.id
LIMIT 100)
"""

UNDATED = """
(SELECT 'charge_mismatch', 'prediction ' || u.prediction_id, 'usage is that of a settled hold', u.cost_nano_usd,
    0::bigint
FROM billing_usage u LEFT JOIN billing_hold h
    ON h.id = u.prediction_id AND h.state = 'settled' AND h.closed_at = u.created_at
WHERE h.id IS NULL
UNION ALL
SELECT 'charge_mismatch', 'usage of ' || d.month, 'dropped usage was that of settled holds', d.cost_nano_usd,
    coalesce(sum(h.cost_nano_usd), 0)::bigint
FROM billing_droppedusage d LEFT JOIN billing_hold h
    ON h.state = 'settled' AND date_trunc('month', h.closed_at AT TIME ZONE 'UTC')::date = d.month
GROUP BY d.month
HAVING (d.predictions, d.cost_nano_usd) IS DISTINCT FROM (count(h.id), coalesce(sum(h.cost_nano_usd), 0))
UNION ALL
SELECT 'charge_mismatch', 'prediction ' || c.prediction_id, 'corrections are those of a charge',
    sum(c.amount_nano_usd)::bigint, coalesce(h.cost_nano_usd, 0)
FROM billing_correction c JOIN billing_hold h ON h.id = c.prediction_id
GROUP BY c.prediction_id, h.state, h.cost_nano_usd
HAVING h.state <> 'settled' OR sum(c.amount_nano_usd) > h.cost_nano_usd
UNION ALL
SELECT 'posting_mismatch', 'account ' || p.account_id, 'a posting is that of its entries', sum(p.amount)::bigint,
    coalesce(sum(e.amount), 0)::bigint
FROM billing_posting p LEFT JOIN LATERAL (
    SELECT sum(amount) AS amount FROM billing_entry
    WHERE transaction_id = p.transaction_id AND account_id = p.account_id
) e ON true
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
