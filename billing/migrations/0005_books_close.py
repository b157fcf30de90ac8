"""Charges commit whole: each statement leaves its transactions balanced, and hold, usage row and entries of a charge
say the same.

The checks of migration 0003 ran when the database transaction committed, or earlier on `SET CONSTRAINTS`: entries added
after such an early check were never looked at. A hold could be closed by hand, and a usage row could name an
invented prediction.
"""

from django.db import migrations

CREATE = """
-- Ledger transactions ------------------------------------------------------------------------------------------------

CREATE FUNCTION billing_assert_prediction_entries(p_transaction billing_ledgertransaction)
RETURNS void LANGUAGE plpgsql AS $$
-- Raises unless the entries are those of the settled hold that the transaction names.
DECLARE
    hold billing_hold;
    payable bigint;
    revenue bigint;
BEGIN
    IF pg_input_is_valid(p_transaction.reference, 'uuid') THEN
        SELECT * INTO hold FROM billing_hold WHERE id = p_transaction.reference::uuid AND state = 'settled';
    END IF;
    IF hold.id IS NULL THEN
        RAISE EXCEPTION 'ledger transaction % names no settled prediction: %', p_transaction.id, p_transaction.reference
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_transaction_prediction_settled';
    END IF;
    SELECT id INTO payable FROM billing_account
        WHERE kind = 'creator_payable' AND organization_id = hold.creator_organization_id;
    SELECT id INTO revenue FROM billing_account WHERE kind = 'platform_revenue';
    IF EXISTS (
        SELECT account_id, amount FROM billing_entry WHERE transaction_id = p_transaction.id
        EXCEPT
        SELECT account_id, amount FROM (VALUES
            (hold.account_id, -hold.cost_nano_usd),
            (payable, hold.creator_nano_usd),
            (revenue, hold.cost_nano_usd - hold.creator_nano_usd)
        ) AS expected (account_id, amount)
    ) THEN  -- with a sum of zero and no account twice, entries that are all expected ones are all of them
        RAISE EXCEPTION 'the entries of ledger transaction % are not those of prediction %', p_transaction.id, hold.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_transaction_prediction_exact';
    END IF;
END $$;

CREATE FUNCTION billing_assert_balanced(p_transaction bigint) RETURNS void LANGUAGE plpgsql AS $$
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
    ELSIF ledger.reverses_id IS NOT NULL AND EXISTS (
        SELECT account_id, sum(amount) FROM billing_entry WHERE transaction_id IN (ledger.id, ledger.reverses_id)
        GROUP BY account_id HAVING sum(amount) <> 0
    ) THEN
        RAISE EXCEPTION 'reversal % does not undo transaction %', ledger.id, ledger.reverses_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_transaction_reversal_exact';
    END IF;
END $$;

-- When the database transaction commits: a ledger transaction without entries.
CREATE OR REPLACE FUNCTION billing_check_zero_sum() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM billing_assert_balanced(NEW.id);
    RETURN NULL;
END $$;

-- After each statement, which nothing can defer or run early: the transactions that it added entries to.
CREATE FUNCTION billing_check_added_entries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM billing_assert_balanced(transaction_id) FROM (SELECT DISTINCT transaction_id FROM added) AS touched;
    RETURN NULL;
END $$;
CREATE TRIGGER billing_entry_statement_balanced AFTER INSERT ON billing_entry REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION billing_check_added_entries();

-- A settled hold, its usage and its entries ---------------------------------------------------------------------------

CREATE FUNCTION billing_check_settled_hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM billing_usage WHERE prediction_id = NEW.id AND created_at = NEW.closed_at) THEN
        RAISE EXCEPTION 'hold % is settled without usage', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_hold_settled_has_usage';
    END IF;
    IF NEW.cost_nano_usd > 0 AND NOT EXISTS (
        SELECT 1 FROM billing_ledgertransaction WHERE kind = 'prediction' AND reference = NEW.id::text
    ) THEN
        RAISE EXCEPTION 'hold % is settled without entries', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_hold_settled_has_entries';
    END IF;
    RETURN NULL;
END $$;
-- Run early by SET CONSTRAINTS it refuses what is not complete yet; it cannot be made to pass too soon, because a
-- settled hold and what belongs to it never change.
CREATE CONSTRAINT TRIGGER billing_hold_settled AFTER UPDATE OF state ON billing_hold
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.state = 'settled')
    EXECUTE FUNCTION billing_check_settled_hold();

CREATE FUNCTION billing_check_usage() RETURNS trigger LANGUAGE plpgsql AS $$
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
    RETURN NEW;
END $$;
CREATE TRIGGER billing_usage_settles_hold BEFORE INSERT ON billing_usage
    FOR EACH ROW EXECUTE FUNCTION billing_check_usage();

-- A settled hold is the proof of its usage: only released ones, which moved no money, may be deleted.
CREATE OR REPLACE FUNCTION billing_guard_hold_deletion() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state <> 'released' THEN
        RAISE EXCEPTION 'hold % is % and cannot be deleted', OLD.id, OLD.state USING ERRCODE = 'check_violation';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER billing_hold_deletion BEFORE DELETE ON billing_hold
    FOR EACH ROW EXECUTE FUNCTION billing_guard_hold_deletion();

-- TRUNCATE of a partition or of balances ------------------------------------------------------------------------------

CREATE TRIGGER billing_account_no_truncate BEFORE TRUNCATE ON billing_account
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_keybudget_no_truncate BEFORE TRUNCATE ON billing_keybudget
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();

CREATE FUNCTION billing_protect_partition(p_partition regclass) RETURNS void LANGUAGE plpgsql AS $$
-- Row triggers reach partitions by themselves, statement triggers do not.
BEGIN
    EXECUTE format('CREATE TRIGGER billing_usage_no_truncate BEFORE TRUNCATE ON %s '
                   'FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()', p_partition);
END $$;
SELECT billing_protect_partition(inhrelid::regclass) FROM pg_inherits WHERE inhparent = 'billing_usage'::regclass;

CREATE OR REPLACE FUNCTION billing_create_usage_partition(p_day date) RETURNS boolean LANGUAGE plpgsql AS $$
-- Creates the partition of the UTC month that holds p_day. False if it exists, or if the default partition already
-- has rows of that month: those stay where they are, and queries see them all the same.
DECLARE
    first_day date := date_trunc('month', p_day);
    lower timestamptz := first_day::timestamp AT TIME ZONE 'UTC';
    upper timestamptz := (first_day + interval '1 month') AT TIME ZONE 'UTC';
    partition text := 'billing_usage_' || to_char(first_day, 'YYYY_MM');
BEGIN
    IF to_regclass(partition) IS NOT NULL
       OR EXISTS (SELECT 1 FROM billing_usage_default WHERE created_at >= lower AND created_at < upper) THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE %I PARTITION OF billing_usage FOR VALUES FROM (%L) TO (%L)', partition, lower, upper);
    PERFORM billing_protect_partition(partition::regclass);
    RETURN true;
END $$;
"""

# The same as in migration 0004, but for the entries, which one statement writes.
SETTLE = """
CREATE OR REPLACE FUNCTION billing_settle_hold(
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
"""

DROP = """
DROP TRIGGER billing_keybudget_no_truncate ON billing_keybudget;
DROP TRIGGER billing_account_no_truncate ON billing_account;
DROP TRIGGER billing_hold_deletion ON billing_hold;
DROP TRIGGER billing_usage_settles_hold ON billing_usage;
DROP TRIGGER billing_hold_settled ON billing_hold;
DROP TRIGGER billing_entry_statement_balanced ON billing_entry;
DO $$
DECLARE
    partition regclass;
BEGIN
    FOR partition IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'billing_usage'::regclass LOOP
        EXECUTE format('DROP TRIGGER billing_usage_no_truncate ON %s', partition);
    END LOOP;
END $$;
DROP FUNCTION billing_protect_partition(regclass), billing_guard_hold_deletion(), billing_check_usage(),
    billing_check_settled_hold(), billing_check_added_entries();

CREATE OR REPLACE FUNCTION billing_create_usage_partition(p_day date) RETURNS boolean LANGUAGE plpgsql AS $$
-- Creates the partition of the UTC month that holds p_day. False if it exists, or if the default partition already
-- has rows of that month: those stay where they are, and queries see them all the same.
DECLARE
    first_day date := date_trunc('month', p_day);
    lower timestamptz := first_day::timestamp AT TIME ZONE 'UTC';
    upper timestamptz := (first_day + interval '1 month') AT TIME ZONE 'UTC';
    partition text := 'billing_usage_' || to_char(first_day, 'YYYY_MM');
BEGIN
    IF to_regclass(partition) IS NOT NULL
       OR EXISTS (SELECT 1 FROM billing_usage_default WHERE created_at >= lower AND created_at < upper) THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE %I PARTITION OF billing_usage FOR VALUES FROM (%L) TO (%L)', partition, lower, upper);
    RETURN true;
END $$;

CREATE OR REPLACE FUNCTION billing_check_zero_sum() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    total numeric;
    lines bigint;
BEGIN
    SELECT coalesce(sum(amount), 0), count(*) INTO total, lines FROM billing_entry WHERE transaction_id = NEW.id;
    IF total <> 0 OR lines < 2 THEN
        RAISE EXCEPTION 'ledger transaction % has % entries that sum to %', NEW.id, lines, total
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_transaction_zero_sum';
    END IF;
    IF NEW.reverses_id IS NOT NULL AND EXISTS (
        SELECT account_id, sum(amount) FROM billing_entry WHERE transaction_id IN (NEW.id, NEW.reverses_id)
        GROUP BY account_id HAVING sum(amount) <> 0
    ) THEN
        RAISE EXCEPTION 'reversal % does not undo transaction %', NEW.id, NEW.reverses_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_transaction_reversal_exact';
    END IF;
    RETURN NULL;
END $$;
DROP FUNCTION billing_assert_balanced(bigint), billing_assert_prediction_entries(billing_ledgertransaction);
"""

SETTLE_BEFORE = """
CREATE OR REPLACE FUNCTION billing_settle_hold(
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


class Migration(migrations.Migration):
    dependencies = [("billing", "0004_hold_functions")]
    operations = [migrations.RunSQL(CREATE, DROP), migrations.RunSQL(SETTLE, SETTLE_BEFORE)]
