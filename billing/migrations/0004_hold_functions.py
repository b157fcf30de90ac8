"""The hot path: place, settle and release a hold, one call and one round trip each.

Order in which they lock rows, so that no two ever wait for each other in a circle: the hold (settle and release),
the customer's account, the key's budget, the creator's account, the platform's account (last, because every
settlement needs it).
"""

from django.db import migrations

CREATE = """
CREATE FUNCTION billing_account_id(p_kind text, p_organization uuid) RETURNS bigint LANGUAGE plpgsql AS $$
-- The account of this kind, opened if there is none yet.
DECLARE
    found_id bigint;
BEGIN
    SELECT id INTO found_id FROM billing_account
        WHERE kind = p_kind AND organization_id IS NOT DISTINCT FROM p_organization;
    IF found_id IS NULL THEN
        INSERT INTO billing_account (kind, organization_id) VALUES (p_kind, p_organization) ON CONFLICT DO NOTHING;
        SELECT id INTO found_id FROM billing_account
            WHERE kind = p_kind AND organization_id IS NOT DISTINCT FROM p_organization;
    END IF;
    RETURN found_id;
END $$;

CREATE FUNCTION billing_cost_nano_usd(
    p_input bigint, p_cached_input bigint, p_output bigint, p_per_prediction bigint,
    p_prompt_tokens bigint, p_cached_tokens bigint, p_completion_tokens bigint
) RETURNS numeric LANGUAGE sql IMMUTABLE AS $$
-- The same as billing.pricing.cost_nano_usd: summed in pico-dollars, rounded up to nano-dollars once.
    SELECT div((p_prompt_tokens - p_cached_tokens)::numeric * p_input + p_cached_tokens::numeric * p_cached_input
        + p_completion_tokens::numeric * p_output + 999, 1000) + p_per_prediction
$$;

CREATE FUNCTION billing_place_hold(
    p_id uuid, p_organization uuid, p_api_key uuid, p_amount bigint, p_input bigint, p_cached_input bigint,
    p_output bigint, p_per_prediction bigint, p_creator_bps integer, p_model_name text, p_model uuid, p_version uuid,
    p_creator uuid, p_idempotency_key text, p_request_hash bytea, p_replica uuid, p_expires_at timestamptz
) RETURNS TABLE (outcome text, available bigint, budget_limit bigint, budget_spent bigint,
                 existing_id uuid, existing_state text, same_body boolean) LANGUAGE plpgsql AS $$
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
        SELECT * INTO budget FROM billing_keybudget b WHERE b.api_key_id = p_api_key FOR NO KEY UPDATE;
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
                WHERE b.api_key_id = p_api_key;
        END IF;
    END IF;

    INSERT INTO billing_hold (
        id, account_id, organization_id, api_key_id, amount_nano_usd, state, input_micro_usd_per_mtok,
        cached_input_micro_usd_per_mtok, output_micro_usd_per_mtok, per_prediction_nano_usd, creator_bps, model_name,
        model_id, version_id, creator_organization_id, idempotency_key, request_hash, replica_id, counts_in_budget,
        expires_at
    ) VALUES (
        p_id, wallet.id, p_organization, p_api_key, p_amount, 'open', p_input, p_cached_input, p_output,
        p_per_prediction, p_creator_bps, p_model_name, p_model, p_version, p_creator, p_idempotency_key,
        p_request_hash, p_replica, budget.api_key_id IS NOT NULL, p_expires_at
    );
    RETURN QUERY SELECT 'placed', wallet.posted - wallet.held - p_amount, NULL::bigint, NULL::bigint,
        NULL::uuid, NULL::text, NULL::boolean;
END $$;

CREATE FUNCTION billing_release_hold(p_id uuid, p_reason text) RETURNS boolean LANGUAGE plpgsql AS $$
-- True if the hold was open and is now released; false if it was closed before or never existed.
DECLARE
    hold billing_hold;
BEGIN
    UPDATE billing_hold SET state = 'released', closed_at = now(), close_reason = p_reason
        WHERE id = p_id AND state = 'open' RETURNING * INTO hold;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF hold.counts_in_budget THEN
        UPDATE billing_keybudget SET held_nano_usd = held_nano_usd - hold.amount_nano_usd
            WHERE api_key_id = hold.api_key_id;
    END IF;
    RETURN true;
END $$;

CREATE FUNCTION billing_settle_hold(
    p_id uuid, p_prompt_tokens bigint, p_cached_tokens bigint, p_completion_tokens bigint, p_finish_reason text,
    p_receipt text, p_replica uuid
) RETURNS TABLE (outcome text, cost bigint, creator bigint, platform bigint) LANGUAGE plpgsql AS $$
DECLARE
    hold billing_hold;
    ledger_id bigint;
    this_month date := date_trunc('month', now() AT TIME ZONE 'UTC');
BEGIN
    SELECT * INTO hold FROM billing_hold h WHERE h.id = p_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'unknown', NULL::bigint, NULL::bigint, NULL::bigint;
        RETURN;
    ELSIF hold.state = 'settled' THEN
        RETURN QUERY SELECT 'already_settled', hold.cost_nano_usd, hold.creator_nano_usd,
            hold.cost_nano_usd - hold.creator_nano_usd;
        RETURN;
    ELSIF p_completion_tokens = 0 THEN  -- nothing was delivered: free
        RETURN QUERY SELECT CASE WHEN billing_release_hold(p_id, p_finish_reason) THEN 'released'
            ELSE 'already_released' END, 0::bigint, 0::bigint, 0::bigint;
        RETURN;
    ELSIF hold.state = 'released' THEN
        RETURN QUERY SELECT 'late', NULL::bigint, NULL::bigint, NULL::bigint;
        RETURN;
    END IF;

    cost := least(hold.amount_nano_usd, billing_cost_nano_usd(
        hold.input_micro_usd_per_mtok, hold.cached_input_micro_usd_per_mtok, hold.output_micro_usd_per_mtok,
        hold.per_prediction_nano_usd, p_prompt_tokens, p_cached_tokens, p_completion_tokens));
    creator := div(cost::numeric * hold.creator_bps, 10000);
    platform := cost - creator;

    UPDATE billing_hold SET state = 'settled', closed_at = now(), close_reason = p_finish_reason, cost_nano_usd = cost,
        creator_nano_usd = creator, replica_id = coalesce(p_replica, replica_id) WHERE id = p_id;
    IF hold.counts_in_budget THEN
        -- A prediction counts in the month in which it is settled.
        UPDATE billing_keybudget SET held_nano_usd = held_nano_usd - hold.amount_nano_usd,
            spent_total_nano_usd = spent_total_nano_usd + cost,
            spent_this_month_nano_usd = cost + CASE WHEN month < this_month THEN 0 ELSE spent_this_month_nano_usd END,
            month = greatest(month, this_month)
            WHERE api_key_id = hold.api_key_id;
    END IF;

    INSERT INTO billing_usage (
        prediction_id, organization_id, api_key_id, model_name, model_id, version_id, creator_organization_id,
        replica_id, prompt_tokens, cached_tokens, completion_tokens, input_micro_usd_per_mtok,
        cached_input_micro_usd_per_mtok, output_micro_usd_per_mtok, per_prediction_nano_usd, creator_bps,
        cost_nano_usd, creator_nano_usd, platform_nano_usd, finish_reason, receipt
    ) VALUES (
        p_id, hold.organization_id, hold.api_key_id, hold.model_name, hold.model_id, hold.version_id,
        hold.creator_organization_id, coalesce(p_replica, hold.replica_id), p_prompt_tokens, p_cached_tokens,
        p_completion_tokens, hold.input_micro_usd_per_mtok, hold.cached_input_micro_usd_per_mtok,
        hold.output_micro_usd_per_mtok, hold.per_prediction_nano_usd, hold.creator_bps, cost, creator, platform,
        p_finish_reason, p_receipt
    );
    INSERT INTO billing_outbox (topic, key, payload) VALUES ('prediction.settled', p_id::text, jsonb_build_object(
        'prediction_id', p_id, 'organization_id', hold.organization_id, 'api_key_id', hold.api_key_id,
        'creator_organization_id', hold.creator_organization_id, 'model_name', hold.model_name,
        'prompt_tokens', p_prompt_tokens, 'completion_tokens', p_completion_tokens, 'cost_nano_usd', cost));

    IF cost > 0 THEN  -- a free model moves no money, and an entry of zero says nothing
        INSERT INTO billing_ledgertransaction (kind, reference) VALUES ('prediction', p_id::text) RETURNING id INTO ledger_id;
        INSERT INTO billing_entry (transaction_id, account_id, amount) VALUES (ledger_id, hold.account_id, -cost);
        IF creator > 0 THEN
            INSERT INTO billing_entry (transaction_id, account_id, amount)
                VALUES (ledger_id, billing_account_id('creator_payable', hold.creator_organization_id), creator);
        END IF;
        IF platform > 0 THEN
            INSERT INTO billing_entry (transaction_id, account_id, amount)
                VALUES (ledger_id, billing_account_id('platform_revenue', NULL), platform);
        END IF;
    END IF;
    RETURN QUERY SELECT 'settled', cost, creator, platform;
END $$;
"""

DROP = """
DROP FUNCTION billing_settle_hold(uuid, bigint, bigint, bigint, text, text, uuid);
DROP FUNCTION billing_release_hold(uuid, text);
DROP FUNCTION billing_place_hold(uuid, uuid, uuid, bigint, bigint, bigint, bigint, bigint, integer, text, uuid, uuid,
    uuid, text, bytea, uuid, timestamptz);
DROP FUNCTION billing_cost_nano_usd(bigint, bigint, bigint, bigint, bigint, bigint, bigint);
DROP FUNCTION billing_account_id(text, uuid);
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0003_ledger_rules")]
    operations = [migrations.RunSQL(CREATE, DROP)]
