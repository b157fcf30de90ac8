-- Paid credit by model, week, organization and lot: one more sum of billing_roll_up (migration 0021 has the others).

CREATE OR REPLACE FUNCTION billing_roll_up(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
-- Adds at most p_limit usage rows and corrections to the sums, oldest first, and returns how many it added.
DECLARE
    nothing CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
    first_day CONSTANT date := '2000-01-01';
    began timestamptz;
    counted integer;
BEGIN
    INSERT INTO billing_rollupmark (id) VALUES (1) ON CONFLICT DO NOTHING;
    PERFORM 1 FROM billing_rollupmark WHERE id = 1 FOR UPDATE;
    began := clock_timestamp();

    WITH due AS MATERIALIZED (
        DELETE FROM billing_rollupqueue
        WHERE id = ANY (ARRAY(SELECT id FROM billing_rollupqueue ORDER BY id LIMIT p_limit))
        RETURNING prediction_id, settled_at, correction_id
    ), sold AS (
        SELECT u.prediction_id, u.organization_id, (u.created_at AT TIME ZONE 'UTC')::date AS day,
            u.api_key_id, u.model_id, u.model_name, u.version_id, u.latency_class, u.split_id, t.id AS transaction_id, 1 AS predictions, u.prompt_tokens, u.cached_tokens,
            u.completion_tokens, u.cost_nano_usd AS charged
        FROM due
        JOIN billing_usage u ON u.prediction_id = due.prediction_id AND u.created_at = due.settled_at
        LEFT JOIN billing_ledgertransaction t ON t.kind = 'prediction' AND t.reference = due.prediction_id::text
        WHERE due.correction_id IS NULL
    ), corrected AS (
        -- From the hold: the usage of long ago may have been dropped.
        SELECT h.id, h.organization_id, (h.closed_at AT TIME ZONE 'UTC')::date, h.api_key_id, h.model_id,
            h.model_name, h.version_id, h.latency_class, h.split_id, c.transaction_id, 0, 0, 0, 0, -c.amount_nano_usd
        FROM due JOIN billing_correction c ON c.id = due.correction_id JOIN billing_hold h ON h.id = c.prediction_id
    ), movement AS MATERIALIZED (
        SELECT m.*, coalesce(k.first_key_id, m.api_key_id) AS key_line
        FROM (SELECT * FROM sold UNION ALL SELECT * FROM corrected) m
        LEFT JOIN accounts_apikey k ON k.id = m.api_key_id
    ), part AS MATERIALIZED (
        -- One row for each movement and payee. An organization that has several parts of a split is one payee, for the
        -- reason of its first part. Lateral, because the planner expects few rows here and would join in loops of loops.
        SELECT p.organization_id AS payee, p.reason, m.organization_id AS customer_id, m.day, m.model_id, m.model_name,
            m.version_id, m.latency_class, m.predictions, m.prompt_tokens, m.cached_tokens, m.completion_tokens,
            m.charged, share.earned
        FROM movement m
        CROSS JOIN LATERAL (
            SELECT DISTINCT ON (s.organization_id) s.organization_id, s.reason FROM billing_splitpart s
            WHERE s.split_id = m.split_id AND s.organization_id IS NOT NULL ORDER BY s.organization_id, s.place
        ) p
        CROSS JOIN LATERAL (
            SELECT coalesce(sum(e.amount), 0) AS earned
            FROM billing_entry e JOIN billing_account a ON a.id = e.account_id
            JOIN billing_accountkind k ON k.code = a.kind AND k.family = 'creator'
            WHERE e.transaction_id = m.transaction_id AND a.organization_id = p.organization_id
        ) share
    ), used AS (
        INSERT INTO billing_usageday AS t (organization_id, day, model_id, key_line, version_id, latency_class,
            model_name, predictions, prompt_tokens, cached_tokens, completion_tokens, charged_nano_usd)
        SELECT organization_id, day, model_id, key_line, version_id, latency_class, max(model_name), sum(predictions),
            sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens), sum(charged)
        FROM movement GROUP BY organization_id, day, model_id, key_line, version_id, latency_class ORDER BY 1, 2, 3
        ON CONFLICT (organization_id, day, model_id, key_line, version_id, latency_class) DO UPDATE SET
            model_name = excluded.model_name, predictions = t.predictions + excluded.predictions,
            prompt_tokens = t.prompt_tokens + excluded.prompt_tokens,
            cached_tokens = t.cached_tokens + excluded.cached_tokens,
            completion_tokens = t.completion_tokens + excluded.completion_tokens,
            charged_nano_usd = t.charged_nano_usd + excluded.charged_nano_usd
    ), paid AS (
        -- Draws of paid lots alone, after corrections: what was spent of promotional credit counts nowhere here.
        INSERT INTO billing_paidweek AS t (model_id, week, organization_id, lot_id, paid_nano_usd)
        SELECT m.model_id, date_trunc('week', m.day::timestamp)::date, m.organization_id, e.lot_id, -sum(e.amount)
        FROM movement m CROSS JOIN LATERAL (
            SELECT e.lot_id, e.amount FROM billing_entry e JOIN billing_lot l ON l.id = e.lot_id AND l.kind = 'paid'
            WHERE e.transaction_id = m.transaction_id
        ) e
        GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
        ON CONFLICT (model_id, week, organization_id, lot_id) DO UPDATE SET
            paid_nano_usd = t.paid_nano_usd + excluded.paid_nano_usd
    ), earned AS (
        INSERT INTO billing_earningsday AS t (organization_id, day, reason, model_id, version_id, latency_class,
            model_name, predictions, prompt_tokens, cached_tokens, completion_tokens, charged_nano_usd, earned_nano_usd)
        SELECT payee, day, reason, model_id, version_id, latency_class, max(model_name), sum(predictions),
            sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens), sum(charged), sum(earned)
        FROM part GROUP BY payee, day, reason, model_id, version_id, latency_class ORDER BY 1, 2, 3, 4
        ON CONFLICT (organization_id, day, reason, model_id, version_id, latency_class) DO UPDATE SET
            model_name = excluded.model_name, predictions = t.predictions + excluded.predictions,
            prompt_tokens = t.prompt_tokens + excluded.prompt_tokens,
            cached_tokens = t.cached_tokens + excluded.cached_tokens,
            completion_tokens = t.completion_tokens + excluded.completion_tokens,
            charged_nano_usd = t.charged_nano_usd + excluded.charged_nano_usd,
            earned_nano_usd = t.earned_nano_usd + excluded.earned_nano_usd
    ), span (days) AS (
        VALUES (0), (1), (4), (16), (64)
    ), customer AS (
        INSERT INTO billing_spancustomer (organization_id, subject, span, start, customer_id)
        SELECT DISTINCT payee, seen.subject, span.days, CASE span.days WHEN 0 THEN first_day
            ELSE day - (day - first_day) % span.days END, customer_id
        FROM part CROSS JOIN span CROSS JOIN LATERAL (VALUES (nothing), (model_id)) AS seen (subject)
        WHERE predictions > 0 AND (seen.subject = nothing OR span.days = 0)
        ORDER BY 1, 2, 3, 4, 5
        ON CONFLICT DO NOTHING RETURNING organization_id, subject, span, start
    ), line AS (
        SELECT 'usage' AS facet, organization_id, day, nothing AS subject, '' AS label, sum(predictions) AS predictions,
            sum(prompt_tokens) AS prompt_tokens, sum(completion_tokens) AS completion_tokens, sum(charged) AS charged,
            0::numeric AS earned
        FROM movement GROUP BY organization_id, day
        UNION ALL
        SELECT 'usage_model', organization_id, day, model_id, max(model_name), sum(predictions), sum(prompt_tokens),
            sum(completion_tokens), sum(charged), 0
        FROM movement GROUP BY organization_id, day, model_id
        UNION ALL
        SELECT 'usage_key', organization_id, day, coalesce(key_line, nothing), '', sum(predictions), sum(prompt_tokens),
            sum(completion_tokens), sum(charged), 0
        FROM movement GROUP BY organization_id, day, key_line
        UNION ALL
        SELECT 'platform', nothing, day, nothing, '', sum(predictions), sum(prompt_tokens), sum(completion_tokens),
            sum(charged), 0
        FROM movement GROUP BY day
        UNION ALL
        SELECT 'platform', nothing, day, nothing, '', 0, 0, 0, 0, sum(earned) FROM part GROUP BY day
        UNION ALL
        SELECT 'earnings', payee, day, nothing, '', sum(predictions), sum(prompt_tokens), sum(completion_tokens),
            sum(charged), sum(earned)
        FROM part GROUP BY payee, day
        UNION ALL
        SELECT 'earnings_model', payee, day, model_id, max(model_name), sum(predictions), sum(prompt_tokens),
            sum(completion_tokens), sum(charged), sum(earned)
        FROM part GROUP BY payee, day, model_id
    ), block AS (
        SELECT facet, organization_id, span.days AS span, CASE span.days WHEN 0 THEN first_day
                ELSE day - (day - first_day) % span.days END AS start, subject, label, predictions, prompt_tokens,
            completion_tokens, charged, earned, 0 AS customers
        FROM line CROSS JOIN span
        UNION ALL
        SELECT CASE subject WHEN nothing THEN 'earnings' ELSE 'earnings_model' END, organization_id, span, start, subject,
            '', 0, 0, 0, 0, 0, 1
        FROM customer
    ), summed AS (
        INSERT INTO billing_spantotal AS t (facet, organization_id, span, start, subject, label, predictions,
            prompt_tokens, completion_tokens, charged_nano_usd, earned_nano_usd, customers)
        SELECT facet, organization_id, span, start, subject, max(label), sum(predictions), sum(prompt_tokens),
            sum(completion_tokens), sum(charged), sum(earned), sum(customers)
        FROM block GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
        ON CONFLICT (facet, organization_id, span, start, subject) DO UPDATE SET
            label = excluded.label, predictions = t.predictions + excluded.predictions,
            prompt_tokens = t.prompt_tokens + excluded.prompt_tokens,
            completion_tokens = t.completion_tokens + excluded.completion_tokens,
            charged_nano_usd = t.charged_nano_usd + excluded.charged_nano_usd,
            earned_nano_usd = t.earned_nano_usd + excluded.earned_nano_usd,
            customers = t.customers + excluded.customers
    )
    SELECT count(*) INTO counted FROM due;

    IF counted < p_limit THEN
        UPDATE billing_rollupmark SET complete_at = began WHERE id = 1;
    END IF;
    RETURN counted;
END $$;

-- What was counted before. Movements that still wait in the queue are added by billing_roll_up.
INSERT INTO billing_paidweek (model_id, week, organization_id, lot_id, paid_nano_usd)
SELECT h.model_id, date_trunc('week', h.closed_at AT TIME ZONE 'UTC')::date, h.organization_id, e.lot_id, -sum(e.amount)
FROM billing_entry e JOIN billing_lot l ON l.id = e.lot_id AND l.kind = 'paid'
JOIN billing_ledgertransaction t ON t.id = e.transaction_id
LEFT JOIN billing_ledgertransaction original ON original.id = t.corrects_id
JOIN billing_hold h ON h.id::text = coalesce(original.reference, t.reference) AND h.state = 'settled'
LEFT JOIN billing_correction c ON c.transaction_id = t.id
WHERE coalesce(original.kind, t.kind) = 'prediction' AND NOT EXISTS (
    SELECT 1 FROM billing_rollupqueue q WHERE q.prediction_id = h.id AND q.correction_id IS NOT DISTINCT FROM c.id)
GROUP BY 1, 2, 3, 4;
