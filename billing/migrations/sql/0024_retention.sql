-- Single predictions of long ago are dropped, a month at once; sums, holds, entries, papers and published trees stay.

CREATE FUNCTION billing_usage_proven(p_month date) RETURNS boolean LANGUAGE sql STABLE AS $$
-- Whether all that is ever published about the predictions of a month is published. The app of receipts replaces this.
    SELECT true
$$;

CREATE FUNCTION billing_usage_papers_missing(p_from timestamptz, p_to timestamptz) RETURNS text LANGUAGE plpgsql AS $$
-- Why the predictions of this time are still needed for statements and papers: not_posted, no_papers; null if they are not.
DECLARE
    last_closed date := (SELECT max(month) FROM billing_period);
    months date[];
BEGIN
    -- A charge that became visible late was posted to a later month than its own.
    SELECT array_agg(DISTINCT coalesce(p.period, 'infinity')) INTO months
        FROM billing_usage u
        JOIN billing_ledgertransaction t ON t.kind = 'prediction' AND t.reference = u.prediction_id::text
        LEFT JOIN billing_posting p ON p.transaction_id = t.id
        WHERE u.created_at >= p_from AND u.created_at < p_to;
    IF EXISTS (SELECT 1 FROM unnest(months) AS m (month) WHERE m.month > last_closed) THEN
        RETURN 'not_posted';
    ELSIF EXISTS (
        SELECT 1 FROM billing_periodmovement m JOIN billing_account a ON a.id = m.account_id
        JOIN billing_accountkind k ON k.code = a.kind
        WHERE m.period = ANY (months) AND m.kind = 'prediction' AND k.family IN ('customer', 'creator')
            AND NOT EXISTS (SELECT 1 FROM billing_paper p WHERE p.organization_id = a.organization_id
                AND p.period = m.period AND p.kind = CASE k.family WHEN 'customer' THEN 'invoice' ELSE 'earnings' END)
    ) THEN
        RETURN 'no_papers';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION billing_usage_uncounted(p_from timestamptz, p_to timestamptz) RETURNS boolean LANGUAGE sql STABLE AS $$
-- Whether the sums of the days of this time are not those of its predictions and their corrections.
    WITH sold AS (
        SELECT count(*) AS predictions, coalesce(sum(prompt_tokens), 0) AS prompt, coalesce(sum(cached_tokens), 0) AS cached,
            coalesce(sum(completion_tokens), 0) AS completion, coalesce(sum(cost_nano_usd), 0) AS charged
        FROM billing_usage WHERE created_at >= p_from AND created_at < p_to
    ), given_back AS (
        SELECT coalesce(sum(c.amount_nano_usd), 0) AS amount FROM billing_correction c
        JOIN billing_usage u ON u.prediction_id = c.prediction_id AND u.created_at >= p_from AND u.created_at < p_to
    ), counted AS (
        SELECT coalesce(sum(predictions), 0) AS predictions, coalesce(sum(prompt_tokens), 0) AS prompt,
            coalesce(sum(cached_tokens), 0) AS cached, coalesce(sum(completion_tokens), 0) AS completion,
            coalesce(sum(charged_nano_usd), 0) AS charged
        FROM billing_usageday
        WHERE day >= (p_from AT TIME ZONE 'UTC')::date AND day < (p_to AT TIME ZONE 'UTC')::date
    )
    SELECT (s.predictions, s.prompt, s.cached, s.completion, s.charged - g.amount)
        IS DISTINCT FROM (c.predictions, c.prompt, c.cached, c.completion, c.charged)
    FROM sold s, given_back g, counted c
$$;

CREATE FUNCTION billing_drop_usage(p_month date) RETURNS text LANGUAGE plpgsql AS $$
-- Drops the single predictions of a month. Answers dropped, or why it did not:
--   not_a_month, no_partition (also: dropped before), too_young (13 whole months are always kept), month_open, incident,
--   dispute (its evidence may be what was used then), open_hold, queued (not in the sums yet), not_posted, no_papers, not_proven
--   (receipts), wrong_sums, busy (a query holds the table: predictions never wait for this longer than a second).
-- Later corrections and refunds need the hold and the entries of a prediction, which are never dropped.
DECLARE
    this_month date := date_trunc('month', now() AT TIME ZONE 'UTC');
    lower timestamptz := p_month::timestamp AT TIME ZONE 'UTC';
    upper timestamptz := (p_month + interval '1 month') AT TIME ZONE 'UTC';
    partition text := 'billing_usage_' || to_char(p_month, 'YYYY_MM');
    patience text := current_setting('lock_timeout');
    missing text;
BEGIN
    IF p_month <> date_trunc('month', p_month)::date THEN
        RETURN 'not_a_month';
    ELSIF NOT EXISTS (SELECT 1 FROM pg_inherits
                      WHERE inhparent = 'billing_usage'::regclass AND inhrelid = to_regclass(partition)) THEN
        RETURN 'no_partition';
    ELSIF p_month + interval '13 months' >= this_month THEN
        RETURN 'too_young';
    ELSIF coalesce((SELECT max(month) FROM billing_period), '-infinity') < p_month THEN
        RETURN 'month_open';
    ELSIF EXISTS (SELECT 1 FROM billing_incident WHERE resolved_at IS NULL) THEN
        RETURN 'incident';
    ELSIF EXISTS (
        SELECT 1 FROM billing_dispute d JOIN billing_topup t ON t.id = d.top_up_id AND t.credited_at < upper
        JOIN billing_usageday u ON u.organization_id = t.organization_id AND u.day >= p_month AND u.day < upper
        WHERE d.state = 'open'
    ) THEN
        RETURN 'dispute';
    ELSIF EXISTS (SELECT 1 FROM billing_hold WHERE state = 'open' AND created_at < upper) THEN
        RETURN 'open_hold';
    ELSIF EXISTS (SELECT 1 FROM billing_rollupqueue WHERE settled_at >= lower AND settled_at < upper) THEN
        RETURN 'queued';
    END IF;
    missing := billing_usage_papers_missing(lower, upper);
    IF missing IS NOT NULL THEN
        RETURN missing;
    ELSIF NOT billing_usage_proven(p_month) THEN
        RETURN 'not_proven';
    ELSIF billing_usage_uncounted(lower, upper) THEN
        RETURN 'wrong_sums';
    END IF;
    BEGIN
        INSERT INTO billing_droppedusage (month, predictions, cost_nano_usd)
            SELECT p_month, count(*), coalesce(sum(cost_nano_usd), 0)
            FROM billing_usage WHERE created_at >= lower AND created_at < upper;
        PERFORM set_config('lock_timeout', '1s', true);
        EXECUTE format('DROP TABLE %I', partition);
        PERFORM set_config('lock_timeout', patience, true);
    EXCEPTION WHEN lock_not_available OR unique_violation THEN
        RETURN 'busy';  -- what this block did is undone, the time limit too
    END;
    RETURN 'dropped';
END $$;

CREATE TRIGGER billing_droppedusage_append_only BEFORE UPDATE OR DELETE ON billing_droppedusage
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_droppedusage_no_truncate BEFORE TRUNCATE ON billing_droppedusage
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
