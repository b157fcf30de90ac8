-- Closing and placing holds with fewer statements. The order of locks is that of migration 0020.

CREATE OR REPLACE FUNCTION billing_gross_nano_usd(
    p_input bigint, p_cached_input bigint, p_output bigint, p_per_prediction bigint, p_class_bps integer,
    p_prompt_tokens bigint, p_cached_tokens bigint, p_completion_tokens bigint
) RETURNS numeric LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
-- The same as billing.pricing.cost_nano_usd without an allowance: tokens and the flat price are summed in
-- pico-dollars, multiplied by the latency class (10,000 is 1 x), and rounded up to nano-dollars once. One expression takes
-- less time in this language than a query.
BEGIN
    RETURN div(
        ((p_prompt_tokens - p_cached_tokens)::numeric * p_input + p_cached_tokens::numeric * p_cached_input
            + p_completion_tokens::numeric * p_output + p_per_prediction::numeric * 1000) * p_class_bps + 9999999,
        10000000);
END $$;

CREATE OR REPLACE FUNCTION billing_lock_closing(p_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
-- Takes the locks of closing these holds, which are locked already, but for the accounts of payees.
DECLARE
    owners uuid[];
    free boolean;
    counted boolean;
BEGIN
    SELECT array_agg(organization_id), bool_or(monthly_allowance_nano_usd + introductory_allowance_nano_usd > 0),
        bool_or(budget_path <> '{}') INTO owners, free, counted FROM billing_hold WHERE id = ANY (p_ids);
    PERFORM 1 FROM billing_account WHERE kind = 'customer_credit' AND organization_id = ANY (owners)
        ORDER BY id FOR NO KEY UPDATE;
    IF free THEN
        PERFORM 1 FROM billing_allowance WHERE (organization_id, model_id) IN (
                SELECT organization_id, model_id FROM billing_hold WHERE id = ANY (p_ids)
                    AND monthly_allowance_nano_usd + introductory_allowance_nano_usd > 0)
            ORDER BY organization_id, model_id, kind, month FOR NO KEY UPDATE;
    END IF;
    IF counted THEN
        PERFORM billing_lock_nodes(ARRAY(
            SELECT node FROM billing_hold h, unnest(h.budget_path) AS node WHERE h.id = ANY (p_ids)));
    END IF;
END $$;

CREATE OR REPLACE FUNCTION billing_close_counters(p_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
-- Moves budgets and allowances of holds that were closed in this database transaction, from held to spent.
DECLARE
    free boolean;
    counted boolean;
BEGIN
    SELECT bool_or(monthly_allowance_nano_usd + introductory_allowance_nano_usd > 0), bool_or(budget_path <> '{}')
        INTO free, counted FROM billing_hold WHERE id = ANY (p_ids);
    IF counted THEN
        PERFORM billing_spend_in_budgets((SELECT jsonb_agg(jsonb_build_object('path', budget_path,
            'held', -amount_nano_usd, 'spent', coalesce(cost_nano_usd, 0)))
            FROM billing_hold WHERE id = ANY (p_ids) AND budget_path <> '{}'));
    END IF;
    IF free THEN
        PERFORM billing_move_allowance(organization_id, model_id, date_trunc('month', created_at AT TIME ZONE 'UTC')::date,
                -monthly_allowance_nano_usd, -introductory_allowance_nano_usd,
                least(allowance_used_nano_usd, monthly_allowance_nano_usd),
                greatest(0, allowance_used_nano_usd - monthly_allowance_nano_usd))
            FROM billing_hold WHERE id = ANY (p_ids) AND monthly_allowance_nano_usd + introductory_allowance_nano_usd > 0;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION billing_book_charges(p_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
-- The ledger transactions of settled holds: the customer's lots pay, the parts of the split earn.
DECLARE
    holds uuid[];
    accounts bigint[];
    amounts bigint[];
BEGIN
    FOR turn IN 1 .. 2 LOOP
        SELECT array_agg(l.hold_id), array_agg(l.account_id), array_agg(l.amount) INTO holds, accounts, amounts
            FROM billing_charge_lines(p_ids) l;
        EXIT WHEN array_position(accounts, NULL) IS NULL;
        PERFORM billing_open_payees(p_ids);
    END LOOP;
    WITH charged AS MATERIALIZED (
        SELECT id, account_id, cost_nano_usd FROM billing_hold WHERE id = ANY (p_ids) AND cost_nano_usd > 0
    ), booked AS MATERIALIZED (
        INSERT INTO billing_ledgertransaction (kind, reference) SELECT 'prediction', id::text FROM charged ORDER BY id
        RETURNING id, reference::uuid AS hold_id
    ), drawn AS (
        SELECT d.* FROM (SELECT array_agg(account_id ORDER BY id) AS accounts, array_agg(id ORDER BY id) AS keys,
                array_agg(cost_nano_usd ORDER BY id) AS amounts FROM charged) c,
            LATERAL billing_draw_lots(c.accounts, c.keys, c.amounts) d
    ), line AS (
        SELECT key AS hold_id, account_id, lot_id, -amount AS amount FROM drawn
        UNION ALL
        SELECT l.hold_id, l.account_id, NULL, l.amount
            FROM unnest(holds, accounts, amounts) AS l (hold_id, account_id, amount) WHERE l.amount > 0
    )
    -- One statement, so that each transaction is balanced when it is checked.
    INSERT INTO billing_entry (transaction_id, account_id, lot_id, amount)
        SELECT b.id, line.account_id, line.lot_id, line.amount FROM line JOIN booked b ON b.hold_id = line.hold_id;
END $$;

CREATE OR REPLACE FUNCTION billing_settle_holds(p_items jsonb)
RETURNS TABLE (id uuid, outcome text, cost bigint) LANGUAGE plpgsql AS $$
-- Charges attempts for what their receipts say, at most for what was delivered: one row per hold. Outcomes: settled,
-- already_settled, released (nothing was delivered), already_released, late (released before), other_attempt, unknown.
#variable_conflict use_column
DECLARE
    items billing_settle_item[] := ARRAY(
        SELECT DISTINCT ON (i.id) i FROM jsonb_populate_recordset(NULL::billing_settle_item, p_items) i ORDER BY i.id);
    ids uuid[] := ARRAY(SELECT i.id FROM unnest(items) i);
    outcomes jsonb;
    settling uuid[];
    releasing uuid[];
BEGIN
    PERFORM 1 FROM billing_hold h WHERE h.id = ANY (ids) ORDER BY h.id FOR NO KEY UPDATE;
    SELECT jsonb_object_agg(o.id, o.outcome), array_agg(o.id) FILTER (WHERE o.outcome = 'settle'),
        array_agg(o.id) FILTER (WHERE o.outcome = 'release')
        INTO outcomes, settling, releasing FROM billing_settle_outcomes(items) o;
    PERFORM billing_lock_closing(settling || releasing);
    IF releasing IS NOT NULL THEN
        PERFORM billing_release_holds(ARRAY(SELECT i.id FROM unnest(items) i WHERE i.id = ANY (releasing)),
            ARRAY(SELECT i.finish_reason FROM unnest(items) i WHERE i.id = ANY (releasing)));
    END IF;
    IF cardinality(settling) = cardinality(ids) THEN
        PERFORM billing_settle_locked(items, ids);
    ELSIF settling IS NOT NULL THEN
        PERFORM billing_settle_locked(ARRAY(SELECT i FROM unnest(items) i WHERE i.id = ANY (settling)), settling);
    END IF;
    RETURN QUERY SELECT i.id, CASE outcome.name WHEN 'settle' THEN 'settled' WHEN 'release' THEN 'released' ELSE outcome.name END,
        CASE WHEN outcome.name IN ('settle', 'already_settled') THEN h.cost_nano_usd - coalesce(c.given, 0)
             WHEN outcome.name IN ('release', 'already_released') THEN 0 END::bigint
    FROM unnest(ids) AS i (id) CROSS JOIN LATERAL (SELECT outcomes ->> i.id::text AS name) outcome
    LEFT JOIN billing_hold h ON h.id = i.id AND h.id = ANY (ids)
    LEFT JOIN (SELECT prediction_id, sum(amount_nano_usd) AS given FROM billing_correction
               WHERE prediction_id = ANY (ids) GROUP BY prediction_id) c ON c.prediction_id = i.id;
END $$;

CREATE OR REPLACE FUNCTION billing_settle_locked(p_items billing_settle_item[], p_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
-- Settles open holds, which are locked with all that closing them needs.
BEGIN
    UPDATE billing_hold h SET state = 'settled', closed_at = now(), close_reason = priced.finish_reason,
        cost_nano_usd = least(h.amount_nano_usd, greatest(0, priced.gross - h.monthly_allowance_nano_usd
            - h.introductory_allowance_nano_usd)),
        allowance_used_nano_usd = least(priced.gross, h.monthly_allowance_nano_usd + h.introductory_allowance_nano_usd)
        FROM (
            SELECT p.id, i.finish_reason, billing_gross_nano_usd(
                p.input_micro_usd_per_mtok, p.cached_input_micro_usd_per_mtok, p.output_micro_usd_per_mtok,
                p.per_prediction_nano_usd, p.class_bps, i.prompt_tokens, i.cached_tokens,
                least(i.completion_tokens, p.delivered_tokens))::bigint AS gross
            FROM unnest(p_items) i JOIN billing_hold p ON p.id = i.id AND p.id = ANY (p_ids) OFFSET 0
        ) priced WHERE h.id = priced.id AND h.id = ANY (p_ids);
    INSERT INTO billing_usage (
        prediction_id, organization_id, api_key_id, model_name, model_id, version_id, creator_organization_id,
        replica_id, attempt, prompt_tokens, cached_tokens, completion_tokens, price_id, input_micro_usd_per_mtok,
        cached_input_micro_usd_per_mtok, output_micro_usd_per_mtok, per_prediction_nano_usd, latency_class, class_bps,
        split_id, allowance_nano_usd, cost_nano_usd, finish_reason, receipt
    ) SELECT h.id, h.organization_id, h.api_key_id, h.model_name, h.model_id, h.version_id, h.creator_organization_id,
        h.replica_id, h.attempt, i.prompt_tokens, i.cached_tokens, least(i.completion_tokens, h.delivered_tokens),
        h.price_id, h.input_micro_usd_per_mtok, h.cached_input_micro_usd_per_mtok, h.output_micro_usd_per_mtok,
        h.per_prediction_nano_usd, h.latency_class, h.class_bps, h.split_id, h.allowance_used_nano_usd, h.cost_nano_usd,
        i.finish_reason, i.receipt
    FROM billing_hold h JOIN unnest(p_items) i ON i.id = h.id WHERE h.id = ANY (p_ids);
    INSERT INTO billing_outbox (topic, key, payload)
        SELECT 'prediction.settled', h.id::text, jsonb_build_object(
            'prediction_id', h.id, 'organization_id', h.organization_id, 'api_key_id', h.api_key_id,
            'creator_organization_id', h.creator_organization_id, 'model_name', h.model_name,
            'prompt_tokens', i.prompt_tokens, 'completion_tokens', least(i.completion_tokens, h.delivered_tokens),
            'cost_nano_usd', h.cost_nano_usd)
        FROM billing_hold h JOIN unnest(p_items) i ON i.id = h.id WHERE h.id = ANY (p_ids);
    PERFORM billing_close_counters(p_ids);
    PERFORM billing_book_charges(p_ids);
END $$;

CREATE OR REPLACE FUNCTION billing_charge_lines(p_ids uuid[]) RETURNS TABLE (hold_id uuid, account_id bigint, amount bigint)
LANGUAGE sql STABLE AS $$
-- The amounts that the charges of settled holds put on accounts, the customer's among them. No account: it is not open yet.
    WITH charged AS (
        SELECT h.id, h.account_id, h.split_id, h.cost_nano_usd FROM billing_hold h
        WHERE h.id = ANY (p_ids) AND h.state = 'settled' AND h.cost_nano_usd > 0
    ), share AS (
        SELECT s.key, s.organization_id, sum(s.amount) AS amount
        FROM (SELECT array_agg(id) AS ids, array_agg(split_id) AS splits, array_agg(cost_nano_usd) AS costs FROM charged) c,
            LATERAL billing_shares_of(c.ids, c.splits, c.costs) s
        GROUP BY s.key, s.organization_id
    )
    SELECT c.id, c.account_id, -c.cost_nano_usd FROM charged c
    UNION ALL
    SELECT share.key, CASE WHEN share.organization_id IS NULL THEN (
            SELECT id FROM billing_account WHERE organization_id IS NULL AND kind = 'platform_revenue')
        ELSE a.id END, share.amount::bigint
    FROM share LEFT JOIN billing_account a ON a.organization_id = share.organization_id AND a.kind = 'creator_reserve'
        AND a.organization_id = ANY (ARRAY(SELECT organization_id FROM share))
$$;
