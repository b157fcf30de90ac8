-- Closing holds, many in one statement. Locks: holds by id, wallets by id, allowances, budget nodes from roots to leaves,
-- then the other accounts in the order of their kinds.

DROP FUNCTION billing_settle_hold(uuid, integer, bigint, bigint, bigint, text, text, uuid);
DROP FUNCTION billing_refund_prediction(uuid, text);
DROP FUNCTION billing_release_hold(uuid, text);

CREATE FUNCTION billing_lock_closing(p_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
-- Takes the locks of closing these holds, which are locked already, but for the accounts of payees.
BEGIN
    PERFORM billing_lock_wallets(ARRAY(SELECT organization_id FROM billing_hold WHERE id = ANY (p_ids)));
    PERFORM 1 FROM billing_allowance WHERE (organization_id, model_id) IN (
            SELECT organization_id, model_id FROM billing_hold WHERE id = ANY (p_ids)
                AND monthly_allowance_nano_usd + introductory_allowance_nano_usd > 0)
        ORDER BY organization_id, model_id, kind, month FOR NO KEY UPDATE;
    PERFORM billing_lock_nodes(ARRAY(
        SELECT node FROM billing_hold h, unnest(h.budget_path) AS node WHERE h.id = ANY (p_ids)));
END $$;

CREATE FUNCTION billing_close_counters(p_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
-- Moves budgets and allowances of holds that were closed in this database transaction, from held to spent.
BEGIN
    IF EXISTS (SELECT 1 FROM billing_hold WHERE id = ANY (p_ids) AND budget_path <> '{}') THEN
        PERFORM billing_spend_in_budgets((SELECT jsonb_agg(jsonb_build_object('path', budget_path,
            'held', -amount_nano_usd, 'spent', coalesce(cost_nano_usd, 0)))
            FROM billing_hold WHERE id = ANY (p_ids) AND budget_path <> '{}'));
    END IF;
    PERFORM billing_move_allowance(organization_id, model_id, date_trunc('month', created_at AT TIME ZONE 'UTC')::date,
            -monthly_allowance_nano_usd, -introductory_allowance_nano_usd,
            least(allowance_used_nano_usd, monthly_allowance_nano_usd),
            greatest(0, allowance_used_nano_usd - monthly_allowance_nano_usd))
        FROM billing_hold WHERE id = ANY (p_ids) AND monthly_allowance_nano_usd + introductory_allowance_nano_usd > 0;
END $$;

CREATE FUNCTION billing_release_holds(p_ids uuid[], p_reasons text[]) RETURNS uuid[] LANGUAGE plpgsql AS $$
-- Releases those that are open, and returns them. Once it is committed, nothing can charge these predictions any more.
DECLARE
    released uuid[];
BEGIN
    PERFORM 1 FROM billing_hold WHERE id = ANY (p_ids) AND state = 'open' ORDER BY id FOR NO KEY UPDATE;
    released := ARRAY(SELECT id FROM billing_hold WHERE id = ANY (p_ids) AND state = 'open');
    IF cardinality(released) > 0 THEN
        PERFORM billing_lock_closing(released);
        UPDATE billing_hold h SET state = 'released', closed_at = now(), close_reason = r.reason, allowance_used_nano_usd = 0
            FROM (SELECT DISTINCT ON (id) id, reason FROM unnest(p_ids, p_reasons) AS u (id, reason)) r
            WHERE h.id = r.id AND h.id = ANY (released);
        PERFORM billing_close_counters(released);
    END IF;
    RETURN released;
END $$;

CREATE FUNCTION billing_release_hold(p_id uuid, p_reason text) RETURNS boolean LANGUAGE sql AS $$
-- True if the hold was open and is now released; false if it was closed before or never existed.
    SELECT p_id = ANY (billing_release_holds(ARRAY[p_id], ARRAY[p_reason]))
$$;

CREATE FUNCTION billing_open_payees(p_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
-- Opens the accounts that the charges of these settled holds need and that do not exist yet.
BEGIN
    INSERT INTO billing_account (kind, organization_id)
        SELECT DISTINCT 'creator_reserve', p.organization_id FROM billing_hold h JOIN billing_splitpart p ON p.split_id = h.split_id
        WHERE h.id = ANY (p_ids) AND p.organization_id IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM billing_account a WHERE a.kind = 'creator_reserve' AND a.organization_id = p.organization_id)
        ORDER BY p.organization_id ON CONFLICT DO NOTHING;
    IF NOT EXISTS (SELECT 1 FROM billing_account WHERE kind = 'platform_revenue') THEN
        PERFORM billing_account_id('platform_revenue', NULL);
    END IF;
END $$;

CREATE FUNCTION billing_book_charges(p_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
-- The ledger transactions of settled holds: the customer's lots pay, the parts of the split earn.
BEGIN
    PERFORM billing_open_payees(p_ids);
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
        SELECT l.hold_id, l.account_id, NULL, l.amount FROM (SELECT array_agg(id) AS keys FROM charged) c,
            LATERAL billing_charge_lines(c.keys) l WHERE l.amount > 0
    )
    -- One statement, so that each transaction is balanced when it is checked.
    INSERT INTO billing_entry (transaction_id, account_id, lot_id, amount)
        SELECT b.id, line.account_id, line.lot_id, line.amount FROM line JOIN booked b ON b.hold_id = line.hold_id;
END $$;

CREATE TYPE billing_settle_item AS (
    id uuid, attempt integer, prompt_tokens bigint, cached_tokens bigint, completion_tokens bigint,
    finish_reason text, receipt text, replica_id uuid
);

CREATE FUNCTION billing_settle_outcomes(p_items billing_settle_item[])
RETURNS TABLE (id uuid, outcome text, charged_tokens bigint) LANGUAGE sql STABLE AS $$
-- The outcome of each item, whose hold is locked. Outcomes: settle, release (nothing was delivered), already_settled,
-- already_released, late (tokens for a hold that was released before), other_attempt, unknown.
    SELECT i.id, CASE
        WHEN h.id IS NULL THEN 'unknown'
        WHEN h.attempt <> i.attempt OR h.replica_id IS DISTINCT FROM i.replica_id THEN 'other_attempt'
        WHEN h.state = 'settled' THEN 'already_settled'
        -- Nothing was delivered: free. (A prompt that is only scored asks for no tokens, and is paid for.)
        WHEN least(i.completion_tokens, h.delivered_tokens) = 0 AND (h.max_tokens > 0 OR h.delivered_tokens = 0)
            THEN CASE h.state WHEN 'open' THEN 'release' ELSE 'already_released' END
        WHEN h.state = 'released' THEN 'late'
        ELSE 'settle' END,
        least(i.completion_tokens, h.delivered_tokens)  -- least() leaves a null out
    FROM unnest(p_items) i LEFT JOIN billing_hold h ON h.id = i.id
$$;

CREATE FUNCTION billing_settle_holds(p_items jsonb)
RETURNS TABLE (id uuid, outcome text, cost bigint) LANGUAGE plpgsql AS $$
-- Charges attempts for what their receipts say, at most for what was delivered: one row per hold. Outcomes: settled,
-- already_settled, released (nothing was delivered), already_released, late (released before), other_attempt, unknown.
#variable_conflict use_column
DECLARE
    items billing_settle_item[] := ARRAY(
        SELECT DISTINCT ON (i.id) i FROM jsonb_populate_recordset(NULL::billing_settle_item, p_items) i ORDER BY i.id);
    outcomes jsonb;
    settling uuid[];
    releasing uuid[];
BEGIN
    PERFORM 1 FROM billing_hold h WHERE h.id IN (SELECT i.id FROM unnest(items) i) ORDER BY h.id FOR NO KEY UPDATE;
    SELECT jsonb_object_agg(o.id, o.outcome), array_agg(o.id) FILTER (WHERE o.outcome = 'settle'),
        array_agg(o.id) FILTER (WHERE o.outcome = 'release')
        INTO outcomes, settling, releasing FROM billing_settle_outcomes(items) o;
    PERFORM billing_lock_closing(settling || releasing);
    IF releasing IS NOT NULL THEN
        PERFORM billing_release_holds(ARRAY(SELECT i.id FROM unnest(items) i WHERE i.id = ANY (releasing)),
            ARRAY(SELECT i.finish_reason FROM unnest(items) i WHERE i.id = ANY (releasing)));
    END IF;
    IF settling IS NOT NULL THEN
        PERFORM billing_settle_locked(ARRAY(SELECT i FROM unnest(items) i WHERE i.id = ANY (settling)), settling);
    END IF;
    RETURN QUERY SELECT i.id, CASE outcome.name WHEN 'settle' THEN 'settled' WHEN 'release' THEN 'released' ELSE outcome.name END,
        CASE WHEN outcome.name IN ('settle', 'already_settled') THEN h.cost_nano_usd - coalesce(c.given, 0)
             WHEN outcome.name IN ('release', 'already_released') THEN 0 END::bigint
    FROM unnest(items) i CROSS JOIN LATERAL (SELECT outcomes ->> i.id::text AS name) outcome
    LEFT JOIN billing_hold h ON h.id = i.id
    LEFT JOIN (SELECT prediction_id, sum(amount_nano_usd) AS given FROM billing_correction
               WHERE prediction_id IN (SELECT x.id FROM unnest(items) x) GROUP BY prediction_id) c ON c.prediction_id = i.id;
END $$;

CREATE FUNCTION billing_settle_locked(p_items billing_settle_item[], p_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
-- Settles open holds, which are locked with all that closing them needs.
BEGIN
    UPDATE billing_hold h SET state = 'settled', closed_at = now(), close_reason = i.finish_reason,
        cost_nano_usd = least(h.amount_nano_usd, greatest(0, gross.amount - h.monthly_allowance_nano_usd
            - h.introductory_allowance_nano_usd)),
        allowance_used_nano_usd = least(gross.amount, h.monthly_allowance_nano_usd + h.introductory_allowance_nano_usd)
        FROM unnest(p_items) i, billing_hold priced, LATERAL (SELECT billing_gross_nano_usd(
            priced.input_micro_usd_per_mtok, priced.cached_input_micro_usd_per_mtok, priced.output_micro_usd_per_mtok,
            priced.per_prediction_nano_usd, priced.class_bps, i.prompt_tokens, i.cached_tokens,
            least(i.completion_tokens, priced.delivered_tokens))::bigint AS amount) gross
        WHERE h.id = i.id AND priced.id = i.id;
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
    FROM billing_hold h JOIN unnest(p_items) i ON i.id = h.id;
    INSERT INTO billing_outbox (topic, key, payload)
        SELECT 'prediction.settled', h.id::text, jsonb_build_object(
            'prediction_id', h.id, 'organization_id', h.organization_id, 'api_key_id', h.api_key_id,
            'creator_organization_id', h.creator_organization_id, 'model_name', h.model_name,
            'prompt_tokens', i.prompt_tokens, 'completion_tokens', least(i.completion_tokens, h.delivered_tokens),
            'cost_nano_usd', h.cost_nano_usd)
        FROM billing_hold h JOIN unnest(p_items) i ON i.id = h.id;
    PERFORM billing_close_counters(p_ids);
    PERFORM billing_book_charges(p_ids);
END $$;
