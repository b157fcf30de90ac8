-- The same rules with less work for each prediction: a batch is checked as a whole, and a row's guard is asked only about
-- the columns that it guards.
--
-- Each table is read by `key = ANY (array)`, also where a join would do. Plans are made once for a connection, perhaps
-- while its tables are empty: with such a condition no plan can read more than the rows of the batch.

-- Guards ---------------------------------------------------------------------------------------------------------------

DROP TRIGGER billing_account_guard ON billing_account;
CREATE TRIGGER billing_account_guard
    BEFORE INSERT OR UPDATE OF id, organization_id, kind, currency, may_be_negative ON billing_account
    FOR EACH ROW EXECUTE FUNCTION billing_guard_account();
-- The depth of triggers in which this condition is looked at is one less than in the function.
CREATE TRIGGER billing_account_guard_balance BEFORE UPDATE OF posted, held ON billing_account
    FOR EACH ROW WHEN (pg_trigger_depth() < 1) EXECUTE FUNCTION billing_guard_account();

DROP TRIGGER billing_lot_guard ON billing_lot;
CREATE TRIGGER billing_lot_guard BEFORE INSERT OR DELETE
    OR UPDATE OF id, account_id, kind, opening, expires_at, transaction_id, created_at ON billing_lot
    FOR EACH ROW EXECUTE FUNCTION billing_guard_lot();
CREATE TRIGGER billing_lot_guard_rest BEFORE UPDATE OF remaining ON billing_lot
    FOR EACH ROW WHEN (pg_trigger_depth() < 1) EXECUTE FUNCTION billing_guard_lot();

DROP TRIGGER billing_hold_guard ON billing_hold;
CREATE TRIGGER billing_hold_guard BEFORE INSERT OR DELETE OR UPDATE OF
    id, account_id, organization_id, api_key_id, amount_nano_usd, price_id, input_micro_usd_per_mtok,
    cached_input_micro_usd_per_mtok, output_micro_usd_per_mtok, per_prediction_nano_usd, latency_class, class_bps,
    monthly_allowance_nano_usd, introductory_allowance_nano_usd, split_id, model_name, model_id, version_id,
    creator_organization_id, idempotency_key, request_hash, budget_path, created_at, gateway_id, adapter, base,
    max_prompt_tokens, max_tokens, attempt, replica_id, delivered_tokens, verdict_at
    ON billing_hold FOR EACH ROW EXECUTE FUNCTION billing_guard_hold();
CREATE TRIGGER billing_hold_guard_closed BEFORE UPDATE ON billing_hold
    FOR EACH ROW WHEN (OLD.state <> 'open') EXECUTE FUNCTION billing_guard_hold();

-- Holds ----------------------------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION billing_post_placed_holds() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    splits bigint[] := ARRAY(SELECT DISTINCT split_id FROM placed);
BEGIN
    IF (SELECT count(*) FROM billing_split WHERE id = ANY (splits)) < cardinality(splits) THEN
        RAISE EXCEPTION 'a hold names no split' USING ERRCODE = 'foreign_key_violation';
    END IF;
    UPDATE billing_account a SET held = a.held + s.amount
        FROM (SELECT account_id, sum(amount_nano_usd) AS amount FROM placed GROUP BY account_id) s
        WHERE a.id = s.account_id AND a.id = ANY (ARRAY(SELECT account_id FROM placed));
    RETURN NULL;
END $$;

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

CREATE OR REPLACE FUNCTION billing_post_closed_holds() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE billing_account a SET held = a.held - s.amount
        FROM (SELECT now.account_id, sum(now.amount_nano_usd) AS amount FROM after now JOIN before b ON b.id = now.id
              WHERE b.state = 'open' AND now.state <> 'open' AND now.amount_nano_usd > 0 GROUP BY now.account_id) s
        WHERE a.id = s.account_id AND a.id = ANY (ARRAY(SELECT account_id FROM after));
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION billing_check_settled_hold() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    used boolean;
    booked boolean;
BEGIN
    SELECT EXISTS (SELECT 1 FROM billing_usage WHERE prediction_id = NEW.id AND created_at = NEW.closed_at),
        EXISTS (SELECT 1 FROM billing_ledgertransaction WHERE kind = 'prediction' AND reference = NEW.id::text)
        INTO used, booked;
    IF NOT used THEN
        RAISE EXCEPTION 'hold % is settled without usage', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_hold_settled_has_usage';
    END IF;
    IF NEW.cost_nano_usd > 0 AND NOT booked THEN
        RAISE EXCEPTION 'hold % is settled without entries', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_hold_settled_has_entries';
    END IF;
    RETURN NULL;
END $$;

-- Entries --------------------------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION billing_post_added_entries() RETURNS trigger LANGUAGE plpgsql AS $$
-- Accounts in the order of locks, each once; a lot is changed under the lock of its account.
DECLARE
    accounts bigint[] := ARRAY(SELECT account_id FROM added);
BEGIN
    PERFORM 1 FROM billing_account a JOIN billing_accountkind k ON k.code = a.kind
        WHERE a.id = ANY (accounts) ORDER BY k.rank, a.id FOR NO KEY UPDATE OF a;
    UPDATE billing_account a SET posted = a.posted + s.amount
        FROM (SELECT account_id, sum(amount) AS amount FROM added GROUP BY account_id) s
        WHERE a.id = s.account_id AND a.id = ANY (accounts);
    UPDATE billing_lot l SET remaining = l.remaining + s.amount
        FROM (SELECT lot_id, sum(amount) AS amount FROM added WHERE lot_id IS NOT NULL GROUP BY lot_id) s
        WHERE l.id = s.lot_id AND l.id = ANY (ARRAY(SELECT lot_id FROM added WHERE lot_id IS NOT NULL));
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION billing_assert_charges(p_transactions bigint[]) RETURNS void LANGUAGE plpgsql AS $$
-- Raises unless the entries of each of these predictions are those of the settled hold that it names.
DECLARE
    charges bigint[];
    ids uuid[];  -- of the holds, in the order of `charges`
    wrong record;
BEGIN
    SELECT array_agg(id ORDER BY id),
        array_agg(CASE WHEN pg_input_is_valid(reference, 'uuid') THEN reference::uuid END ORDER BY id)
        INTO charges, ids FROM billing_ledgertransaction WHERE id = ANY (p_transactions);
    SELECT line.id INTO wrong FROM (
        SELECT charges[array_position(ids, hold_id)] AS id, account_id, amount AS due, NULL::bigint AS booked
            FROM billing_charge_lines(ids)
        UNION ALL
        SELECT transaction_id, account_id, NULL, amount FROM billing_entry WHERE transaction_id = ANY (charges)
    ) line GROUP BY line.id, line.account_id HAVING sum(line.due) IS DISTINCT FROM sum(line.booked) ORDER BY 1 LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT t.id, t.reference, EXISTS (SELECT 1 FROM billing_hold h
            WHERE h.id = ids[array_position(charges, t.id)] AND h.state = 'settled') AS settled
        INTO wrong FROM billing_ledgertransaction t WHERE t.id = wrong.id;
    IF NOT wrong.settled THEN
        RAISE EXCEPTION 'ledger transaction % names no settled prediction: %', wrong.id, wrong.reference
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_transaction_prediction_settled';
    END IF;
    RAISE EXCEPTION 'the entries of ledger transaction % are not those of prediction %', wrong.id, wrong.reference
        USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_transaction_prediction_exact';
END $$;

CREATE OR REPLACE FUNCTION billing_check_added_entries() RETURNS trigger LANGUAGE plpgsql AS $$
-- After each statement, which nothing can defer or run early: all rules of the transactions that it added entries to.
DECLARE
    touched bigint[] := ARRAY(SELECT DISTINCT transaction_id FROM added);
    closed bigint;
    charges bigint[];
    corrections bigint[];
    wrong record;
BEGIN
    SELECT min(u.id) FILTER (WHERE t.id IS NULL OR t.database_transaction <> pg_current_xact_id()::text::bigint),
        array_agg(t.id) FILTER (WHERE t.kind = 'prediction'), array_agg(t.id) FILTER (WHERE t.corrects_id IS NOT NULL)
        INTO closed, charges, corrections
        FROM unnest(touched) AS u (id) LEFT JOIN billing_ledgertransaction t ON t.id = u.id AND t.id = ANY (touched);
    IF closed IS NOT NULL THEN
        RAISE EXCEPTION 'ledger transaction % is closed or unknown', closed
            USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'billing_transaction_closed';
    END IF;
    SELECT transaction_id AS id, sum(amount) AS total, count(*) AS lines INTO wrong
        FROM billing_entry WHERE transaction_id = ANY (touched)
        GROUP BY transaction_id HAVING sum(amount) <> 0 OR count(*) < 2 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'ledger transaction % has % entries that sum to %', wrong.id, wrong.lines, wrong.total
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_transaction_zero_sum';
    END IF;
    IF charges IS NOT NULL THEN
        PERFORM billing_assert_charges(charges);
    END IF;
    IF corrections IS NOT NULL THEN
        PERFORM billing_assert_correction(id, corrects_id) FROM billing_ledgertransaction WHERE id = ANY (corrections);
    END IF;
    SELECT e.account_id INTO wrong FROM added e
        JOIN billing_account a ON a.id = e.account_id AND a.id = ANY (ARRAY(SELECT account_id FROM added))
        LEFT JOIN billing_lot l ON l.id = e.lot_id AND l.id = ANY (ARRAY(SELECT lot_id FROM added WHERE lot_id IS NOT NULL))
        WHERE (a.kind = 'customer_credit') <> (l.id IS NOT NULL) OR l.account_id <> e.account_id LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'an entry of account % names no lot of it', wrong.account_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_entry_names_its_lot';
    END IF;
    RETURN NULL;
END $$;
