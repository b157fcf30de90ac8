-- Settling an attempt for what was delivered, and giving back a charge whose answer never went out.

ALTER TABLE billing_usage DROP CONSTRAINT billing_usage_tokens_fit;
ALTER TABLE billing_usage ADD CONSTRAINT billing_usage_tokens_fit CHECK
    (prompt_tokens >= 0 AND cached_tokens BETWEEN 0 AND prompt_tokens AND completion_tokens >= 0);

CREATE OR REPLACE FUNCTION billing_check_usage() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    hold billing_hold;
BEGIN
    SELECT * INTO hold FROM billing_hold WHERE id = NEW.prediction_id AND state = 'settled';
    -- The time is the hold's, so that the primary key allows one row for each prediction.
    IF NOT FOUND OR NEW.created_at IS DISTINCT FROM hold.closed_at OR
        (NEW.organization_id, NEW.api_key_id, NEW.model_name, NEW.model_id, NEW.version_id,
         NEW.creator_organization_id, NEW.replica_id, NEW.input_micro_usd_per_mtok, NEW.cached_input_micro_usd_per_mtok,
         NEW.output_micro_usd_per_mtok, NEW.per_prediction_nano_usd, NEW.creator_bps, NEW.cost_nano_usd,
         NEW.creator_nano_usd)
        IS DISTINCT FROM
        (hold.organization_id, hold.api_key_id, hold.model_name, hold.model_id, hold.version_id,
         hold.creator_organization_id, hold.replica_id, hold.input_micro_usd_per_mtok,
         hold.cached_input_micro_usd_per_mtok, hold.output_micro_usd_per_mtok, hold.per_prediction_nano_usd,
         hold.creator_bps, hold.cost_nano_usd, hold.creator_nano_usd) THEN
        RAISE EXCEPTION 'usage of prediction % is not that of a settled hold', NEW.prediction_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_usage_settles_hold';
    END IF;
    IF NEW.cost_nano_usd <> least(hold.amount_nano_usd, billing_cost_nano_usd(
        NEW.input_micro_usd_per_mtok, NEW.cached_input_micro_usd_per_mtok, NEW.output_micro_usd_per_mtok,
        NEW.per_prediction_nano_usd, NEW.prompt_tokens, NEW.cached_tokens, NEW.completion_tokens)) THEN
        RAISE EXCEPTION 'the cost of prediction % is not that of its tokens', NEW.prediction_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_usage_cost_of_tokens';
    END IF;
    IF NEW.prompt_tokens > hold.max_prompt_tokens OR NEW.completion_tokens > hold.max_tokens
       OR NEW.completion_tokens > hold.delivered_tokens OR (NEW.completion_tokens = 0 AND hold.max_tokens > 0) THEN
        RAISE EXCEPTION 'usage of prediction % is beyond its grant or its delivery', NEW.prediction_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_usage_within_grant';
    END IF;
    RETURN NEW;
END $$;

DROP FUNCTION billing_settle_hold(uuid, bigint, bigint, bigint, text, text, uuid);
CREATE FUNCTION billing_settle_hold(
    p_id uuid, p_attempt integer, p_prompt_tokens bigint, p_cached_tokens bigint, p_completion_tokens bigint,
    p_finish_reason text, p_receipt text, p_replica uuid
) RETURNS TABLE (outcome text, cost bigint, creator bigint, platform bigint) LANGUAGE plpgsql AS $$
-- Charges an attempt for what its receipt says, at most for what was delivered. Outcomes: settled, already_settled,
-- released (nothing was delivered), already_released, late (released before), other_attempt, unknown.
DECLARE
    hold billing_hold;
    charged_tokens bigint;
    ledger_id bigint;
BEGIN
    SELECT * INTO hold FROM billing_hold h WHERE h.id = p_id FOR NO KEY UPDATE;
    charged_tokens := least(p_completion_tokens, hold.delivered_tokens);  -- least() leaves a null out
    IF hold.id IS NULL THEN
        RETURN QUERY SELECT 'unknown', NULL::bigint, NULL::bigint, NULL::bigint;
        RETURN;
    ELSIF hold.attempt <> p_attempt OR hold.replica_id IS DISTINCT FROM p_replica THEN
        RETURN QUERY SELECT 'other_attempt', NULL::bigint, NULL::bigint, NULL::bigint;
        RETURN;
    ELSIF hold.state = 'settled' THEN
        RETURN QUERY SELECT 'already_settled', h.cost, h.creator, h.cost - h.creator FROM (
            SELECT CASE WHEN r.prediction_id IS NULL THEN hold.cost_nano_usd ELSE 0 END AS cost,
                CASE WHEN r.prediction_id IS NULL THEN hold.creator_nano_usd ELSE 0 END AS creator
            FROM (SELECT 1) AS one LEFT JOIN billing_refund r ON r.prediction_id = p_id) AS h;
        RETURN;
    ELSIF charged_tokens = 0 AND (hold.max_tokens > 0 OR hold.delivered_tokens = 0) THEN
        -- Nothing was delivered: free. (A prompt that is only scored asks for no tokens, and is paid for.)
        RETURN QUERY SELECT CASE WHEN billing_release_hold(p_id, p_finish_reason) THEN 'released'
            ELSE 'already_released' END, 0::bigint, 0::bigint, 0::bigint;
        RETURN;
    ELSIF hold.state = 'released' THEN
        RETURN QUERY SELECT 'late', NULL::bigint, NULL::bigint, NULL::bigint;
        RETURN;
    END IF;

    cost := least(hold.amount_nano_usd, billing_cost_nano_usd(
        hold.input_micro_usd_per_mtok, hold.cached_input_micro_usd_per_mtok, hold.output_micro_usd_per_mtok,
        hold.per_prediction_nano_usd, p_prompt_tokens, p_cached_tokens, charged_tokens));
    creator := div(cost::numeric * hold.creator_bps, 10000);
    platform := cost - creator;

    UPDATE billing_hold SET state = 'settled', closed_at = now(), close_reason = p_finish_reason, cost_nano_usd = cost,
        creator_nano_usd = creator WHERE id = p_id;
    IF hold.counts_in_budget THEN
        PERFORM billing_close_in_budget(hold.api_key_id, hold.amount_nano_usd, cost);
    END IF;

    INSERT INTO billing_usage (
        prediction_id, organization_id, api_key_id, model_name, model_id, version_id, creator_organization_id,
        replica_id, prompt_tokens, cached_tokens, completion_tokens, input_micro_usd_per_mtok,
        cached_input_micro_usd_per_mtok, output_micro_usd_per_mtok, per_prediction_nano_usd, creator_bps,
        cost_nano_usd, creator_nano_usd, platform_nano_usd, finish_reason, receipt
    ) VALUES (
        p_id, hold.organization_id, hold.api_key_id, hold.model_name, hold.model_id, hold.version_id,
        hold.creator_organization_id, hold.replica_id, p_prompt_tokens, p_cached_tokens,
        charged_tokens, hold.input_micro_usd_per_mtok, hold.cached_input_micro_usd_per_mtok,
        hold.output_micro_usd_per_mtok, hold.per_prediction_nano_usd, hold.creator_bps, cost, creator, platform,
        p_finish_reason, p_receipt
    );
    INSERT INTO billing_outbox (topic, key, payload) VALUES ('prediction.settled', p_id::text, jsonb_build_object(
        'prediction_id', p_id, 'organization_id', hold.organization_id, 'api_key_id', hold.api_key_id,
        'creator_organization_id', hold.creator_organization_id, 'model_name', hold.model_name,
        'prompt_tokens', p_prompt_tokens, 'completion_tokens', charged_tokens, 'cost_nano_usd', cost));

    IF cost > 0 THEN  -- a free model moves no money, and an entry of zero says nothing
        INSERT INTO billing_ledgertransaction (kind, reference) VALUES ('prediction', p_id::text) RETURNING id INTO ledger_id;
        -- One statement, so that it is balanced; in the order in which accounts are locked.
        INSERT INTO billing_entry (transaction_id, account_id, amount)
            SELECT ledger_id, line.account_id, line.amount FROM (VALUES
                (1, hold.account_id, -cost),
                (2, CASE WHEN creator > 0 THEN billing_account_id('creator_payable', hold.creator_organization_id) END, creator),
                (3, CASE WHEN platform > 0 THEN billing_account_id('platform_revenue', NULL) END, platform)
            ) AS line (rank, account_id, amount) WHERE line.amount <> 0 ORDER BY line.rank;
    END IF;
    RETURN QUERY SELECT 'settled', cost, creator, platform;
END $$;

-- Refunds -------------------------------------------------------------------------------------------------------------

CREATE FUNCTION billing_refund_prediction(p_id uuid, p_reason text) RETURNS boolean LANGUAGE plpgsql AS $$
-- Reverses the charge of a settled prediction, once. False if it is not settled or was refunded before.
DECLARE
    hold billing_hold;
    original billing_ledgertransaction;
    ledger_id bigint;
BEGIN
    SELECT * INTO hold FROM billing_hold WHERE id = p_id AND state = 'settled' FOR NO KEY UPDATE;
    IF NOT FOUND OR EXISTS (SELECT 1 FROM billing_refund WHERE prediction_id = p_id) THEN
        RETURN false;
    END IF;
    PERFORM 1 FROM billing_account WHERE id = hold.account_id FOR NO KEY UPDATE;
    IF hold.counts_in_budget THEN
        UPDATE billing_keybudget SET spent_total_nano_usd = spent_total_nano_usd - hold.cost_nano_usd,
            spent_this_month_nano_usd = spent_this_month_nano_usd - CASE
                WHEN month = date_trunc('month', hold.closed_at AT TIME ZONE 'UTC') THEN hold.cost_nano_usd ELSE 0 END
            WHERE api_key_id = billing_key_line(hold.api_key_id);
    END IF;
    INSERT INTO billing_refund (prediction_id, reason) VALUES (p_id, p_reason);
    INSERT INTO billing_outbox (topic, key, payload) VALUES ('prediction.refunded', p_id::text, jsonb_build_object(
        'prediction_id', p_id, 'organization_id', hold.organization_id, 'cost_nano_usd', hold.cost_nano_usd));
    SELECT * INTO original FROM billing_ledgertransaction WHERE kind = 'prediction' AND reference = p_id::text;
    IF FOUND THEN  -- a free prediction moved no money
        INSERT INTO billing_ledgertransaction (kind, reference, reverses_id, memo)
            VALUES ('reversal', original.id::text, original.id, p_reason) RETURNING id INTO ledger_id;
        -- The original's entries are in the order in which accounts are locked.
        INSERT INTO billing_entry (transaction_id, account_id, amount)
            SELECT ledger_id, account_id, -amount FROM billing_entry WHERE transaction_id = original.id ORDER BY id;
    END IF;
    RETURN true;
END $$;

CREATE TRIGGER billing_refund_append_only BEFORE UPDATE OR DELETE ON billing_refund
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_refund_no_truncate BEFORE TRUNCATE ON billing_refund
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();

CREATE FUNCTION billing_check_refund() RETURNS trigger LANGUAGE plpgsql AS $$
-- A refund is that of a settled hold, and its reversal is there when the database transaction commits.
DECLARE
    hold billing_hold;
BEGIN
    SELECT * INTO hold FROM billing_hold WHERE id = NEW.prediction_id AND state = 'settled';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'refund of prediction %, which is not settled', NEW.prediction_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_refund_of_settled';
    END IF;
    IF hold.cost_nano_usd > 0 AND NOT EXISTS (
        SELECT 1 FROM billing_ledgertransaction original
        JOIN billing_ledgertransaction reversal ON reversal.reverses_id = original.id
        WHERE original.kind = 'prediction' AND original.reference = NEW.prediction_id::text
    ) THEN
        RAISE EXCEPTION 'refund of prediction % without a reversal', NEW.prediction_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_refund_has_reversal';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER billing_refund_reverses AFTER INSERT ON billing_refund
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_check_refund();

CREATE OR REPLACE FUNCTION billing_assert_balanced(p_transaction bigint) RETURNS void LANGUAGE plpgsql AS $$
-- Raises unless the transaction has at least two entries, sums to zero, and is what its kind says.
DECLARE
    ledger billing_ledgertransaction;
    total numeric;
    lines bigint;
BEGIN
    SELECT coalesce(sum(amount), 0), count(*) INTO total, lines FROM billing_entry WHERE transaction_id = p_transaction;
    IF total <> 0 OR lines < 2 THEN
        RAISE EXCEPTION 'ledger transaction % has % entries that sum to %', p_transaction, lines, total
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_transaction_zero_sum';
    END IF;
    SELECT * INTO ledger FROM billing_ledgertransaction WHERE id = p_transaction;
    IF ledger.kind = 'prediction' THEN
        PERFORM billing_assert_prediction_entries(ledger);
    ELSIF ledger.reverses_id IS NOT NULL THEN
        IF EXISTS (
            SELECT account_id, sum(amount) FROM billing_entry WHERE transaction_id IN (ledger.id, ledger.reverses_id)
            GROUP BY account_id HAVING sum(amount) <> 0
        ) THEN
            RAISE EXCEPTION 'reversal % does not undo transaction %', ledger.id, ledger.reverses_id
                USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_transaction_reversal_exact';
        END IF;
        IF EXISTS (
            SELECT 1 FROM billing_ledgertransaction original WHERE original.id = ledger.reverses_id
                AND original.kind = 'prediction' AND NOT EXISTS (
                    SELECT 1 FROM billing_refund WHERE prediction_id = original.reference::uuid)
        ) THEN
            RAISE EXCEPTION 'reversal % of a prediction is no refund', ledger.id
                USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_transaction_reversal_is_refund';
        END IF;
    END IF;
END $$;
