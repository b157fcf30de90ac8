-- Corrections of predictions, whole and partial, and the rules of holds and usage with their new columns.

CREATE FUNCTION billing_give_back(p_original bigint, p_wallet bigint, p_correction bigint, p_amount bigint)
RETURNS TABLE (account_id bigint, lot_id bigint, amount bigint) LANGUAGE plpgsql AS $$
-- Puts an amount back into the lots that paid a charge, the last drawn first. A charge older than lots gives a lot of its own.
#variable_conflict use_column
DECLARE
    new_lot bigint;
    returned bigint := 0;
BEGIN
    FOR account_id, lot_id, amount IN
        SELECT p_wallet, side.lot_id, least(side.rest, p_amount - (side.upto - side.rest))
        FROM (
            SELECT e.lot_id, -sum(e.amount)::bigint AS rest, sum(-sum(e.amount)) OVER (
                ORDER BY l.kind = 'paid' DESC, l.expires_at DESC NULLS FIRST, l.id DESC)::bigint AS upto
            FROM billing_entry e JOIN billing_lot l ON l.id = e.lot_id
            WHERE e.account_id = p_wallet AND (e.transaction_id = p_original OR e.transaction_id IN (
                SELECT id FROM billing_ledgertransaction WHERE corrects_id = p_original))
            GROUP BY e.lot_id, l.kind, l.expires_at, l.id HAVING sum(e.amount) < 0
        ) side WHERE side.upto - side.rest < p_amount
    LOOP
        returned := returned + amount;
        RETURN NEXT;
    END LOOP;
    IF returned < p_amount THEN
        INSERT INTO billing_lot (account_id, kind, transaction_id) VALUES (p_wallet, 'paid', p_correction)
            RETURNING id INTO new_lot;
        RETURN QUERY SELECT p_wallet, new_lot, p_amount - returned;
    END IF;
END $$;

CREATE FUNCTION billing_take_back(p_original bigint, p_wallet bigint, p_amount bigint)
RETURNS TABLE (account_id bigint, amount bigint) LANGUAGE plpgsql AS $$
-- Takes an amount from those who earned a charge, in proportion to what each still has of it (largest remainder). A payee
-- gives from its reserve first, then from what is payable, and owes the rest. All accounts are locked here, in order.
#variable_conflict use_column
DECLARE
    side record;
    source record;
    due bigint;
    part bigint;
BEGIN
    PERFORM billing_account_id('receivable', a.organization_id) FROM billing_entry e JOIN billing_account a ON a.id = e.account_id
        WHERE e.transaction_id = p_original AND e.account_id <> p_wallet AND a.organization_id IS NOT NULL;
    PERFORM 1 FROM billing_account a JOIN billing_accountkind k ON k.code = a.kind
        WHERE k.family = 'creator' AND a.organization_id IN (
            SELECT x.organization_id FROM billing_entry e JOIN billing_account x ON x.id = e.account_id
            WHERE e.transaction_id = p_original)
        ORDER BY k.rank, a.id FOR NO KEY UPDATE OF a;
    FOR side IN
        WITH party AS (
            SELECT a.organization_id, k.family, sum(e.amount)::numeric AS rest
            FROM billing_entry e JOIN billing_account a ON a.id = e.account_id JOIN billing_accountkind k ON k.code = a.kind
            WHERE e.account_id <> p_wallet AND (e.transaction_id = p_original OR e.transaction_id IN (
                SELECT id FROM billing_ledgertransaction WHERE corrects_id = p_original))
            GROUP BY a.organization_id, k.family HAVING sum(e.amount) > 0
        ), divided AS (
            SELECT *, div(rest * p_amount, sum(rest) OVER ()) AS base, mod(rest * p_amount, sum(rest) OVER ()) AS remainder
            FROM party
        )
        SELECT organization_id, (base + CASE WHEN row_number() OVER (ORDER BY remainder DESC, organization_id)
            <= p_amount - sum(base) OVER () THEN 1 ELSE 0 END)::bigint AS share FROM divided
    LOOP
        due := side.share;
        IF side.organization_id IS NULL AND due > 0 THEN
            RETURN QUERY SELECT billing_account_id('platform_revenue', NULL), -due;
            CONTINUE;
        END IF;
        FOR source IN
            SELECT a.id, a.kind, a.posted FROM billing_account a JOIN billing_accountkind k ON k.code = a.kind
            WHERE a.organization_id = side.organization_id AND a.kind IN ('creator_reserve', 'creator_payable', 'receivable')
            ORDER BY k.rank
        LOOP
            part := CASE source.kind WHEN 'receivable' THEN due ELSE least(due, source.posted) END;
            due := due - part;
            IF part > 0 THEN
                RETURN QUERY SELECT source.id, -part;
            END IF;
        END LOOP;
    END LOOP;
END $$;

CREATE FUNCTION billing_correct_prediction(p_id uuid, p_amount bigint, p_reason text, p_correction uuid)
RETURNS TABLE (outcome text, amount bigint) LANGUAGE plpgsql AS $$
-- Gives back a part of the charge of a settled prediction, or all that is left of it (p_amount null). Once per p_correction.
-- Outcomes: corrected, already (by this id, or nothing is left), not_settled, too_much, not_positive.
#variable_conflict use_column
DECLARE
    hold billing_hold;
    original bigint;
    ledger_id bigint;
    rest bigint;
    back bigint;
    today date := (now() AT TIME ZONE 'UTC')::date;
    closed date;
BEGIN
    SELECT * INTO hold FROM billing_hold WHERE id = p_id AND state = 'settled' FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'not_settled', 0::bigint;
        RETURN;
    END IF;
    SELECT hold.cost_nano_usd - coalesce(sum(amount_nano_usd), 0) INTO rest FROM billing_correction WHERE prediction_id = p_id;
    back := coalesce(p_amount, rest);
    IF EXISTS (SELECT 1 FROM billing_correction WHERE id = p_correction)
       OR (p_amount IS NULL AND EXISTS (SELECT 1 FROM billing_correction WHERE prediction_id = p_id) AND rest = 0) THEN
        RETURN QUERY SELECT 'already', 0::bigint;
        RETURN;
    ELSIF back > rest THEN
        RETURN QUERY SELECT 'too_much', rest;
        RETURN;
    ELSIF back < 0 OR (back = 0 AND hold.cost_nano_usd > 0) THEN
        RETURN QUERY SELECT 'not_positive', rest;
        RETURN;
    END IF;
    PERFORM billing_lock_closing(ARRAY[p_id]);
    IF back > 0 THEN
        SELECT id INTO original FROM billing_ledgertransaction WHERE kind = 'prediction' AND reference = p_id::text;
        INSERT INTO billing_ledgertransaction (kind, reference, corrects_id, memo)
            VALUES ('correction', p_correction::text, original, p_reason) RETURNING id INTO ledger_id;
    END IF;
    INSERT INTO billing_correction (id, prediction_id, amount_nano_usd, reason, transaction_id)
        VALUES (p_correction, p_id, back, p_reason, ledger_id);
    INSERT INTO billing_outbox (topic, key, payload) VALUES ('prediction.corrected', p_correction::text, jsonb_build_object(
        'prediction_id', p_id, 'organization_id', hold.organization_id, 'correction_id', p_correction,
        'amount_nano_usd', back, 'cost_nano_usd', hold.cost_nano_usd, 'reason', p_reason));
    IF back > 0 THEN
        INSERT INTO billing_entry (transaction_id, account_id, lot_id, amount)
            SELECT ledger_id, account_id, lot_id, amount
                FROM billing_give_back(original, hold.account_id, ledger_id, back)
            UNION ALL
            SELECT ledger_id, account_id, NULL, amount FROM billing_take_back(original, hold.account_id, back);
        closed := (hold.closed_at AT TIME ZONE 'UTC')::date;
        UPDATE billing_budgetnode n SET spent_total_nano_usd = greatest(0, n.spent_total_nano_usd - back),
            spent_today_nano_usd = greatest(0, n.spent_today_nano_usd - CASE WHEN n.day = closed THEN back ELSE 0 END),
            spent_this_month_nano_usd = greatest(0, n.spent_this_month_nano_usd
                - CASE WHEN n.month = date_trunc('month', closed) THEN back ELSE 0 END)
            WHERE n.id = ANY (hold.budget_path);
    END IF;
    IF back = rest THEN  -- given back whole: the free part of it counts as unused
        PERFORM billing_move_allowance(hold.organization_id, hold.model_id,
            date_trunc('month', hold.created_at AT TIME ZONE 'UTC')::date, 0, 0,
            -least(hold.allowance_used_nano_usd, hold.monthly_allowance_nano_usd),
            -greatest(0, hold.allowance_used_nano_usd - hold.monthly_allowance_nano_usd))
            WHERE hold.allowance_used_nano_usd > 0;
    END IF;
    RETURN QUERY SELECT 'corrected', back;
END $$;

-- The terms of holds and usage ------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION billing_guard_hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.state = 'open' THEN
            RAISE EXCEPTION 'hold % is open and cannot be deleted', OLD.id USING ERRCODE = 'check_violation';
        END IF;
        RETURN OLD;
    END IF;
    IF TG_OP = 'INSERT' THEN
        IF NEW.state <> 'open' OR NEW.attempt <> 1 OR NEW.delivered_tokens IS NOT NULL THEN
            RAISE EXCEPTION 'a hold starts open, at its first attempt and without a verdict'
                USING ERRCODE = 'check_violation';
        END IF;
        IF NOT EXISTS (SELECT 1 FROM billing_split WHERE id = NEW.split_id) THEN
            RAISE EXCEPTION 'hold % names no split', NEW.id USING ERRCODE = 'foreign_key_violation';
        END IF;
        RETURN NEW;
    END IF;
    IF OLD.state <> 'open' THEN
        RAISE EXCEPTION 'hold % is closed', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF (NEW.id, NEW.account_id, NEW.organization_id, NEW.api_key_id, NEW.amount_nano_usd, NEW.price_id,
        NEW.input_micro_usd_per_mtok, NEW.cached_input_micro_usd_per_mtok, NEW.output_micro_usd_per_mtok,
        NEW.per_prediction_nano_usd, NEW.latency_class, NEW.class_bps, NEW.monthly_allowance_nano_usd,
        NEW.introductory_allowance_nano_usd, NEW.split_id, NEW.model_name, NEW.model_id, NEW.version_id,
        NEW.creator_organization_id, NEW.idempotency_key, NEW.request_hash, NEW.budget_path, NEW.created_at,
        NEW.gateway_id, NEW.adapter, NEW.base, NEW.max_prompt_tokens, NEW.max_tokens)
       IS DISTINCT FROM
       (OLD.id, OLD.account_id, OLD.organization_id, OLD.api_key_id, OLD.amount_nano_usd, OLD.price_id,
        OLD.input_micro_usd_per_mtok, OLD.cached_input_micro_usd_per_mtok, OLD.output_micro_usd_per_mtok,
        OLD.per_prediction_nano_usd, OLD.latency_class, OLD.class_bps, OLD.monthly_allowance_nano_usd,
        OLD.introductory_allowance_nano_usd, OLD.split_id, OLD.model_name, OLD.model_id, OLD.version_id,
        OLD.creator_organization_id, OLD.idempotency_key, OLD.request_hash, OLD.budget_path, OLD.created_at,
        OLD.gateway_id, OLD.adapter, OLD.base, OLD.max_prompt_tokens, OLD.max_tokens) THEN
        RAISE EXCEPTION 'the terms of hold % are fixed', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF (NEW.attempt, NEW.replica_id) IS DISTINCT FROM (OLD.attempt, OLD.replica_id)
       AND (NEW.attempt <> OLD.attempt + 1 OR NEW.state <> 'open' OR OLD.delivered_tokens IS NOT NULL
            OR NEW.delivered_tokens IS NOT NULL) THEN
        RAISE EXCEPTION 'hold % moves to another replica by its next attempt alone', OLD.id
            USING ERRCODE = 'check_violation';
    END IF;
    IF OLD.delivered_tokens IS NOT NULL AND (NEW.delivered_tokens, NEW.verdict_at) IS DISTINCT FROM
       (OLD.delivered_tokens, OLD.verdict_at) THEN
        RAISE EXCEPTION 'the verdict on hold % stands', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION billing_check_usage() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    hold billing_hold;
    gross bigint;
BEGIN
    SELECT * INTO hold FROM billing_hold WHERE id = NEW.prediction_id AND state = 'settled';
    -- The time is the hold's, so that the primary key allows one row for each prediction.
    IF NOT FOUND OR NEW.created_at IS DISTINCT FROM hold.closed_at OR
        (NEW.organization_id, NEW.api_key_id, NEW.model_name, NEW.model_id, NEW.version_id,
         NEW.creator_organization_id, NEW.replica_id, NEW.attempt, NEW.price_id, NEW.input_micro_usd_per_mtok,
         NEW.cached_input_micro_usd_per_mtok, NEW.output_micro_usd_per_mtok, NEW.per_prediction_nano_usd,
         NEW.latency_class, NEW.class_bps, NEW.split_id, NEW.allowance_nano_usd, NEW.cost_nano_usd)
        IS DISTINCT FROM
        (hold.organization_id, hold.api_key_id, hold.model_name, hold.model_id, hold.version_id,
         hold.creator_organization_id, hold.replica_id, hold.attempt, hold.price_id, hold.input_micro_usd_per_mtok,
         hold.cached_input_micro_usd_per_mtok, hold.output_micro_usd_per_mtok, hold.per_prediction_nano_usd,
         hold.latency_class, hold.class_bps, hold.split_id, hold.allowance_used_nano_usd, hold.cost_nano_usd) THEN
        RAISE EXCEPTION 'usage of prediction % is not that of a settled hold', NEW.prediction_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_usage_settles_hold';
    END IF;
    gross := billing_gross_nano_usd(
        NEW.input_micro_usd_per_mtok, NEW.cached_input_micro_usd_per_mtok, NEW.output_micro_usd_per_mtok,
        NEW.per_prediction_nano_usd, NEW.class_bps, NEW.prompt_tokens, NEW.cached_tokens, NEW.completion_tokens);
    IF NEW.allowance_nano_usd <> least(gross, hold.monthly_allowance_nano_usd + hold.introductory_allowance_nano_usd)
       OR NEW.cost_nano_usd <> least(hold.amount_nano_usd, gross - NEW.allowance_nano_usd) THEN
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

-- A posting is what a transaction moves on an account: credit may come from several lots.
CREATE OR REPLACE FUNCTION billing_post_entries(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
-- Posts the entries of at most p_limit ledger transactions that have none yet, and returns how many postings it wrote.
--
-- It looks from the oldest database transaction that still ran when an earlier call had posted everything: all before it
-- had ended then. Books restored into another server may have larger numbers than that server: all of them are looked at.
DECLARE
    mark billing_postingmark;
    ended bigint;
    found integer;
    posted integer;
BEGIN
    INSERT INTO billing_postingmark (id) VALUES (1) ON CONFLICT DO NOTHING;
    SELECT * INTO mark FROM billing_postingmark WHERE id = 1 FOR UPDATE;
    SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint INTO ended;
    IF mark.looked_from > ended THEN
        mark.looked_from := 0;
    END IF;
    WITH due AS MATERIALIZED (
        SELECT t.id, t.created_at, billing_open_month(date_trunc('month', t.created_at AT TIME ZONE 'UTC')::date) AS period
        FROM billing_ledgertransaction t
        WHERE t.database_transaction >= mark.looked_from
            AND NOT EXISTS (SELECT 1 FROM billing_posting p WHERE p.transaction_id = t.id)
        ORDER BY t.created_at, t.id LIMIT p_limit
    ), summed AS (
        SELECT due.id, due.created_at, due.period, e.account_id, min(e.id) AS first_entry, sum(e.amount)::bigint AS amount
        FROM due JOIN billing_entry e ON e.transaction_id = due.id
        GROUP BY due.id, due.created_at, due.period, e.account_id
    ), line AS MATERIALIZED (
        SELECT mark.sequence + row_number() OVER (ORDER BY created_at, id, first_entry) AS sequence,
            id AS transaction_id, period, account_id, amount
        FROM summed
    ), before AS (
        SELECT account_id, coalesce((SELECT p.balance FROM billing_posting p WHERE p.account_id = a.account_id
            ORDER BY p.sequence DESC LIMIT 1), 0) AS balance
        FROM (SELECT DISTINCT account_id FROM line) a
    ), written AS (
        INSERT INTO billing_posting (sequence, transaction_id, account_id, amount, period, balance)
        SELECT line.sequence, line.transaction_id, line.account_id, line.amount, line.period,
            before.balance + sum(line.amount) OVER (PARTITION BY line.account_id ORDER BY line.sequence)
        FROM line JOIN before ON before.account_id = line.account_id RETURNING sequence
    )
    SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM written) INTO found, posted;
    UPDATE billing_postingmark SET sequence = mark.sequence + posted,
        looked_from = CASE WHEN found < p_limit THEN ended ELSE mark.looked_from END WHERE id = 1;
    IF posted > 0 THEN
        INSERT INTO billing_instant (sequence, reached_at) VALUES (mark.sequence + posted, clock_timestamp());
    END IF;
    RETURN posted;
END $$;
