-- The books of before, in the new tables. Triggers are off: nothing here is an event.

ALTER TABLE billing_hold DISABLE TRIGGER USER;
ALTER TABLE billing_usage DISABLE TRIGGER USER;
ALTER TABLE billing_correction DISABLE TRIGGER USER;

-- Splits: a creator's basis points, the rest to the platform. The old division is that of one payee.
CREATE TEMPORARY TABLE moved_split ON COMMIT DROP AS
    SELECT creator_organization_id, creator_bps, billing_split_id(
        ARRAY[creator_organization_id, NULL], ARRAY[creator_bps, 10000 - creator_bps], ARRAY['creator', 'platform']) AS id
    FROM (SELECT creator_organization_id, creator_bps::integer FROM billing_hold
          UNION SELECT creator_organization_id, creator_bps FROM billing_usage) h;
UPDATE billing_hold h SET split_id = m.id, allowance_used_nano_usd = CASE WHEN h.state <> 'open' THEN 0 END
    FROM moved_split m
    WHERE (m.creator_organization_id, m.creator_bps) = (h.creator_organization_id, h.creator_bps);
-- By the usage's own columns: once, closed holds could be deleted.
UPDATE billing_usage u SET split_id = m.id FROM moved_split m
    WHERE (m.creator_organization_id, m.creator_bps) = (u.creator_organization_id, u.creator_bps);
UPDATE billing_usage u SET attempt = h.attempt FROM billing_hold h WHERE h.id = u.prediction_id AND h.attempt <> u.attempt;

-- Refunds were whole, and are corrections now; so are reversals of predictions from before there were refunds. Without its
-- correction such a charge could be given back twice.
INSERT INTO billing_correction (id, prediction_id, amount_nano_usd, reason, transaction_id, created_at)
    SELECT gen_random_uuid(), h.id, h.cost_nano_usd, coalesce(r.reason, left(reversal.memo, 64)), reversal.id,
        coalesce(r.created_at, reversal.created_at)
    FROM billing_hold h
    LEFT JOIN billing_refund r ON r.prediction_id = h.id
    LEFT JOIN billing_ledgertransaction original ON original.kind = 'prediction' AND original.reference = h.id::text
    LEFT JOIN billing_ledgertransaction reversal ON reversal.corrects_id = original.id
    WHERE h.state = 'settled' AND (r.prediction_id IS NOT NULL OR reversal.id IS NOT NULL);

-- Budgets of keys are nodes without a parent.
INSERT INTO billing_budgetnode (id, organization_id, kind, name, api_key_id, path, monthly_limit_nano_usd,
        total_limit_nano_usd, day, month, spent_this_month_nano_usd, spent_total_nano_usd, held_nano_usd)
    SELECT node.id, k.organization_id, 'key', k.name, b.api_key_id, ARRAY[node.id], b.monthly_limit_nano_usd,
        b.total_limit_nano_usd, b.month, b.month, b.spent_this_month_nano_usd, b.spent_total_nano_usd, b.held_nano_usd
    FROM billing_keybudget b JOIN accounts_apikey k ON k.id = b.api_key_id
    CROSS JOIN LATERAL (SELECT gen_random_uuid() AS id WHERE b.api_key_id IS NOT NULL) node;
UPDATE billing_hold h SET budget_path = n.path FROM billing_budgetnode n
    WHERE h.counts_in_budget AND n.api_key_id = billing_key_line(h.api_key_id);

-- Lots: what is left of each credit, as if spending had drawn promotional credit first, and then the oldest. A credit that
-- is spent has an empty lot: whoever takes it back (a reversal, a refund at Stripe) looks for it.
WITH credit AS (
    SELECT e.account_id, t.id, t.kind, t.created_at, e.amount + coalesce((
        SELECT sum(r.amount) FROM billing_ledgertransaction back JOIN billing_entry r ON r.transaction_id = back.id
        WHERE back.corrects_id = t.id AND r.account_id = e.account_id), 0) AS amount
    FROM billing_entry e JOIN billing_ledgertransaction t ON t.id = e.transaction_id AND t.kind IN ('top_up', 'promotion')
    JOIN billing_account a ON a.id = e.account_id AND a.kind = 'customer_credit'
), ordered AS (
    SELECT *, sum(amount) OVER (PARTITION BY account_id ORDER BY kind = 'top_up', id) AS upto,
        sum(amount) OVER (PARTITION BY account_id) AS total
    FROM credit
), remaining AS (
    SELECT o.*, least(o.amount, greatest(0, o.upto - (o.total - a.posted))) AS rest
    FROM ordered o JOIN billing_account a ON a.id = o.account_id
)
INSERT INTO billing_lot (account_id, kind, opening, remaining, transaction_id, created_at)
    SELECT account_id, CASE kind WHEN 'top_up' THEN 'paid' ELSE 'promotional' END, rest, rest, id, created_at
    FROM remaining ORDER BY id;

DO $$
DECLARE
    wrong record;
BEGIN
    SELECT a.id, a.posted, coalesce(sum(l.remaining), 0) AS lots INTO wrong
        FROM billing_account a LEFT JOIN billing_lot l ON l.account_id = a.id
        WHERE a.kind = 'customer_credit' GROUP BY a.id HAVING a.posted <> coalesce(sum(l.remaining), 0) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'account % has a balance of % and lots of %: look at its entries before you migrate',
            wrong.id, wrong.posted, wrong.lots;
    END IF;
END $$;

-- No check is left for the end: a table with one that waits cannot be altered.
SET CONSTRAINTS ALL IMMEDIATE;
SET CONSTRAINTS ALL DEFERRED;
ALTER TABLE billing_hold ENABLE TRIGGER USER;
ALTER TABLE billing_usage ENABLE TRIGGER USER;
ALTER TABLE billing_correction ENABLE TRIGGER USER;
