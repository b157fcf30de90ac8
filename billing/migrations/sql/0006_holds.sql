-- Holds that know their attempts. The order of locks is that of migration 0004: the hold, the customer's account, the
-- key's budget, the creator's account, the platform's account.

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
    IF (NEW.id, NEW.account_id, NEW.organization_id, NEW.api_key_id, NEW.amount_nano_usd, NEW.input_micro_usd_per_mtok,
        NEW.cached_input_micro_usd_per_mtok, NEW.output_micro_usd_per_mtok, NEW.per_prediction_nano_usd,
        NEW.creator_bps, NEW.model_name, NEW.model_id, NEW.version_id, NEW.creator_organization_id,
        NEW.idempotency_key, NEW.request_hash, NEW.counts_in_budget, NEW.created_at,
        NEW.gateway_id, NEW.adapter, NEW.base, NEW.max_prompt_tokens, NEW.max_tokens)
       IS DISTINCT FROM
       (OLD.id, OLD.account_id, OLD.organization_id, OLD.api_key_id, OLD.amount_nano_usd, OLD.input_micro_usd_per_mtok,
        OLD.cached_input_micro_usd_per_mtok, OLD.output_micro_usd_per_mtok, OLD.per_prediction_nano_usd,
        OLD.creator_bps, OLD.model_name, OLD.model_id, OLD.version_id, OLD.creator_organization_id,
        OLD.idempotency_key, OLD.request_hash, OLD.counts_in_budget, OLD.created_at,
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

CREATE FUNCTION billing_key_line(p_api_key uuid) RETURNS uuid LANGUAGE sql STABLE AS $$
-- The first key of the key's line of rotations: the one that the line's budget belongs to.
    SELECT coalesce(first_key_id, id) FROM accounts_apikey WHERE id = p_api_key
$$;

DROP FUNCTION billing_place_hold(uuid, uuid, uuid, bigint, bigint, bigint, bigint, bigint, integer, text, uuid, uuid,
    uuid, text, bytea, uuid, timestamptz);
CREATE FUNCTION billing_place_hold(
    p_id uuid, p_organization uuid, p_api_key uuid, p_amount bigint, p_input bigint, p_cached_input bigint,
    p_output bigint, p_per_prediction bigint, p_creator_bps integer, p_model_name text, p_model uuid, p_version uuid,
    p_creator uuid, p_idempotency_key text, p_request_hash bytea, p_replica uuid, p_expires_at timestamptz,
    p_gateway uuid, p_adapter text, p_base text, p_max_prompt_tokens bigint, p_max_tokens bigint
) RETURNS TABLE (outcome text, available bigint, budget_limit bigint, budget_spent bigint,
                 existing_id uuid, existing_state text, same_body boolean) LANGUAGE plpgsql AS $$
-- Places the first attempt, at p_replica. The last five parameters are the gateway that has it and the grant of its
-- ticket: the only adapter, base and token counts that a receipt may claim.
DECLARE
    wallet billing_account;
    earlier billing_hold;
    budget billing_keybudget;
    this_month date := date_trunc('month', now() AT TIME ZONE 'UTC');
BEGIN
    SELECT * INTO wallet FROM billing_account a
        WHERE a.organization_id = p_organization AND a.kind = 'customer_credit' FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'insufficient', 0::bigint, NULL::bigint, NULL::bigint, NULL::uuid, NULL::text, NULL::boolean;
        RETURN;
    END IF;
    -- From here on all holds of this wallet wait for each other, so what is read below cannot change.

    SELECT * INTO earlier FROM billing_hold h WHERE h.id = p_id;
    IF NOT FOUND AND p_idempotency_key IS NOT NULL THEN
        SELECT * INTO earlier FROM billing_hold h
            WHERE h.account_id = wallet.id AND h.idempotency_key = p_idempotency_key
            ORDER BY h.created_at DESC LIMIT 1;
        IF FOUND AND earlier.state = 'released' AND earlier.request_hash = p_request_hash THEN
            earlier := NULL;  -- charged nothing: the same request may be tried again under the same key
        END IF;
    END IF;
    IF earlier.id IS NOT NULL THEN
        RETURN QUERY SELECT 'duplicate', NULL::bigint, NULL::bigint, NULL::bigint,
            earlier.id, earlier.state::text, earlier.request_hash = p_request_hash;
        RETURN;
    END IF;

    IF wallet.posted - wallet.held < p_amount THEN
        RETURN QUERY SELECT 'insufficient', wallet.posted - wallet.held, NULL::bigint, NULL::bigint,
            NULL::uuid, NULL::text, NULL::boolean;
        RETURN;
    END IF;

    IF p_api_key IS NOT NULL THEN
        SELECT * INTO budget FROM billing_keybudget b WHERE b.api_key_id = billing_key_line(p_api_key)
            FOR NO KEY UPDATE;
        IF FOUND THEN
            IF budget.month < this_month THEN
                budget.month := this_month;
                budget.spent_this_month_nano_usd := 0;
            END IF;
            IF budget.spent_this_month_nano_usd + budget.held_nano_usd + p_amount > budget.monthly_limit_nano_usd THEN
                RETURN QUERY SELECT 'budget', NULL::bigint, budget.monthly_limit_nano_usd,
                    budget.spent_this_month_nano_usd + budget.held_nano_usd, NULL::uuid, NULL::text, NULL::boolean;
                RETURN;
            END IF;
            IF budget.spent_total_nano_usd + budget.held_nano_usd + p_amount > budget.total_limit_nano_usd THEN
                RETURN QUERY SELECT 'budget', NULL::bigint, budget.total_limit_nano_usd,
                    budget.spent_total_nano_usd + budget.held_nano_usd, NULL::uuid, NULL::text, NULL::boolean;
                RETURN;
            END IF;
            UPDATE billing_keybudget b SET month = budget.month,
                spent_this_month_nano_usd = budget.spent_this_month_nano_usd,
                held_nano_usd = b.held_nano_usd + p_amount
                WHERE b.api_key_id = budget.api_key_id;
        END IF;
    END IF;

    INSERT INTO billing_hold (
        id, account_id, organization_id, api_key_id, amount_nano_usd, state, input_micro_usd_per_mtok,
        cached_input_micro_usd_per_mtok, output_micro_usd_per_mtok, per_prediction_nano_usd, creator_bps, model_name,
        model_id, version_id, creator_organization_id, idempotency_key, request_hash, replica_id, counts_in_budget,
        expires_at, gateway_id, adapter, base, max_prompt_tokens, max_tokens
    ) VALUES (
        p_id, wallet.id, p_organization, p_api_key, p_amount, 'open', p_input, p_cached_input, p_output,
        p_per_prediction, p_creator_bps, p_model_name, p_model, p_version, p_creator, p_idempotency_key,
        p_request_hash, p_replica, budget.api_key_id IS NOT NULL, p_expires_at, p_gateway, p_adapter, p_base,
        p_max_prompt_tokens, p_max_tokens
    );
    RETURN QUERY SELECT 'placed', wallet.posted - wallet.held - p_amount, NULL::bigint, NULL::bigint,
        NULL::uuid, NULL::text, NULL::boolean;
END $$;

CREATE FUNCTION billing_next_attempt(p_id uuid, p_attempt integer, p_replica uuid) RETURNS boolean LANGUAGE plpgsql AS $$
-- Gives the prediction to another replica. True before the new one may be asked; false if the hold is closed, has a
-- verdict, or is at another attempt.
BEGIN
    UPDATE billing_hold SET attempt = attempt + 1, replica_id = p_replica, dispatched_at = now()
        WHERE id = p_id AND state = 'open' AND attempt = p_attempt AND delivered_tokens IS NULL;
    RETURN FOUND;
END $$;

CREATE FUNCTION billing_close_in_budget(p_api_key uuid, p_held bigint, p_cost bigint) RETURNS void LANGUAGE plpgsql AS $$
-- The budget's part of closing a hold of p_held that cost p_cost. It counts in the month in which the hold is closed.
DECLARE
    this_month date := date_trunc('month', now() AT TIME ZONE 'UTC');
BEGIN
    UPDATE billing_keybudget SET held_nano_usd = held_nano_usd - p_held,
        spent_total_nano_usd = spent_total_nano_usd + p_cost,
        spent_this_month_nano_usd = p_cost + CASE WHEN month < this_month THEN 0 ELSE spent_this_month_nano_usd END,
        month = greatest(month, this_month)
        WHERE api_key_id = billing_key_line(p_api_key);
END $$;

CREATE OR REPLACE FUNCTION billing_release_hold(p_id uuid, p_reason text) RETURNS boolean LANGUAGE plpgsql AS $$
-- True if the hold was open and is now released; false if it was closed before or never existed. Once it is committed,
-- nothing can charge the prediction any more.
DECLARE
    hold billing_hold;
BEGIN
    UPDATE billing_hold SET state = 'released', closed_at = now(), close_reason = p_reason
        WHERE id = p_id AND state = 'open' RETURNING * INTO hold;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF hold.counts_in_budget THEN
        PERFORM billing_close_in_budget(hold.api_key_id, hold.amount_nano_usd, 0);
    END IF;
    RETURN true;
END $$;

CREATE FUNCTION billing_record_delivery(p_id uuid, p_attempt integer, p_tokens bigint) RETURNS text LANGUAGE plpgsql AS $$
-- A gateway's verdict: at most p_tokens completion tokens reached the client. The first verdict stands; 0 releases.
-- Answers recorded, released, closed (or unknown to the books), or other_attempt.
DECLARE
    hold billing_hold;
BEGIN
    SELECT * INTO hold FROM billing_hold WHERE id = p_id FOR NO KEY UPDATE;
    IF NOT FOUND OR hold.state <> 'open' THEN
        RETURN 'closed';
    ELSIF hold.attempt <> p_attempt THEN
        RETURN 'other_attempt';
    ELSIF hold.delivered_tokens IS NOT NULL THEN
        RETURN 'recorded';
    END IF;
    UPDATE billing_hold SET delivered_tokens = p_tokens, verdict_at = now() WHERE id = p_id;
    IF p_tokens > 0 THEN
        RETURN 'recorded';
    END IF;
    PERFORM billing_release_hold(p_id, 'nothing was delivered');
    RETURN 'released';
END $$;

CREATE FUNCTION billing_expire_hold(p_id uuid) RETURNS boolean LANGUAGE plpgsql AS $$
-- Hands an open hold to the sweeper now instead of at its deadline. False if it is closed or already expired.
BEGIN
    UPDATE billing_hold SET expires_at = now() WHERE id = p_id AND state = 'open' AND expires_at > now();
    RETURN FOUND;
END $$;

CREATE FUNCTION billing_gateway_beat(p_id uuid, p_host text) RETURNS void LANGUAGE plpgsql AS $$
-- A gateway process says that it is alive. Rows of processes that are silent for a day go; no row means silent.
BEGIN
    INSERT INTO billing_gateway (id, host) VALUES (p_id, p_host)
        ON CONFLICT (id) DO UPDATE SET last_seen_at = now();
    DELETE FROM billing_gateway WHERE last_seen_at < now() - interval '1 day';
END $$;
