"""What the database itself forbids, whoever writes: unbalanced, edited or reopened transactions, edited balances."""

from django.db import migrations

CREATE = """
-- Append-only tables ---------------------------------------------------------------------------------------------

CREATE FUNCTION billing_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Django's test runner empties every table between tests; its databases are named test_*. A test that proves
    -- this guard turns it on with billing.guard_truncate.
    IF TG_OP = 'TRUNCATE' AND current_database() LIKE 'test\\_%'
       AND coalesce(current_setting('billing.guard_truncate', true), '') <> 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'integrity_constraint_violation', HINT = 'Correct the books with a reversal.';
END $$;

CREATE TRIGGER billing_entry_append_only BEFORE UPDATE OR DELETE ON billing_entry
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_entry_no_truncate BEFORE TRUNCATE ON billing_entry
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_transaction_append_only BEFORE UPDATE OR DELETE ON billing_ledgertransaction
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_transaction_no_truncate BEFORE TRUNCATE ON billing_ledgertransaction
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_usage_append_only BEFORE UPDATE OR DELETE ON billing_usage
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_usage_no_truncate BEFORE TRUNCATE ON billing_usage
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();

-- Transactions: zero-sum when the database transaction commits, closed afterwards ----------------------------------

CREATE FUNCTION billing_open_transaction() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.database_transaction := pg_current_xact_id()::text::bigint;
    RETURN NEW;
END $$;
CREATE TRIGGER billing_transaction_open BEFORE INSERT ON billing_ledgertransaction
    FOR EACH ROW EXECUTE FUNCTION billing_open_transaction();

CREATE FUNCTION billing_check_zero_sum() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE CONSTRAINT TRIGGER billing_transaction_zero_sum AFTER INSERT ON billing_ledgertransaction
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_check_zero_sum();

CREATE FUNCTION billing_check_entry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM billing_ledgertransaction
        WHERE id = NEW.transaction_id AND database_transaction = pg_current_xact_id()::text::bigint;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'ledger transaction % is closed or unknown', NEW.transaction_id
            USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'billing_transaction_closed';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER billing_entry_joins_open_transaction BEFORE INSERT ON billing_entry
    FOR EACH ROW EXECUTE FUNCTION billing_check_entry();

-- Accounts: `posted` follows entries, `held` follows holds, nothing else writes them --------------------------------

CREATE FUNCTION billing_post_entry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE billing_account SET posted = posted + NEW.amount WHERE id = NEW.account_id;
    RETURN NULL;
END $$;
CREATE TRIGGER billing_entry_posts AFTER INSERT ON billing_entry
    FOR EACH ROW EXECUTE FUNCTION billing_post_entry();

CREATE FUNCTION billing_guard_account() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.posted <> 0 OR NEW.held <> 0 THEN
            RAISE EXCEPTION 'an account starts empty' USING ERRCODE = 'check_violation';
        END IF;
    ELSIF (NEW.id, NEW.organization_id, NEW.kind, NEW.currency) IS DISTINCT FROM
          (OLD.id, OLD.organization_id, OLD.kind, OLD.currency) THEN
        RAISE EXCEPTION 'an account keeps its owner, kind and currency' USING ERRCODE = 'check_violation';
    ELSIF (NEW.posted, NEW.held) IS DISTINCT FROM (OLD.posted, OLD.held) AND pg_trigger_depth() < 2 THEN
        -- Depth 1 is this trigger alone, so the UPDATE did not come from an entry or a hold.
        RAISE EXCEPTION 'balances change through entries and holds alone' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER billing_account_guard BEFORE INSERT OR UPDATE ON billing_account
    FOR EACH ROW EXECUTE FUNCTION billing_guard_account();

-- Holds: open, then settled or released, once; the terms never change ------------------------------------------------

CREATE FUNCTION billing_guard_hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.state = 'open' THEN
            RAISE EXCEPTION 'hold % is open and cannot be deleted', OLD.id USING ERRCODE = 'check_violation';
        END IF;
        RETURN OLD;
    END IF;
    IF TG_OP = 'INSERT' THEN
        IF NEW.state <> 'open' THEN
            RAISE EXCEPTION 'a hold starts open' USING ERRCODE = 'check_violation';
        END IF;
        RETURN NEW;
    END IF;
    IF OLD.state <> 'open' THEN
        RAISE EXCEPTION 'hold % is closed', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF (NEW.id, NEW.account_id, NEW.organization_id, NEW.api_key_id, NEW.amount_nano_usd, NEW.input_micro_usd_per_mtok,
        NEW.cached_input_micro_usd_per_mtok, NEW.output_micro_usd_per_mtok, NEW.per_prediction_nano_usd,
        NEW.creator_bps, NEW.model_name, NEW.model_id, NEW.version_id, NEW.creator_organization_id,
        NEW.idempotency_key, NEW.request_hash, NEW.counts_in_budget, NEW.created_at)
       IS DISTINCT FROM
       (OLD.id, OLD.account_id, OLD.organization_id, OLD.api_key_id, OLD.amount_nano_usd, OLD.input_micro_usd_per_mtok,
        OLD.cached_input_micro_usd_per_mtok, OLD.output_micro_usd_per_mtok, OLD.per_prediction_nano_usd,
        OLD.creator_bps, OLD.model_name, OLD.model_id, OLD.version_id, OLD.creator_organization_id,
        OLD.idempotency_key, OLD.request_hash, OLD.counts_in_budget, OLD.created_at) THEN
        RAISE EXCEPTION 'the terms of hold % are fixed', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER billing_hold_guard BEFORE INSERT OR UPDATE OR DELETE ON billing_hold
    FOR EACH ROW EXECUTE FUNCTION billing_guard_hold();
CREATE TRIGGER billing_hold_no_truncate BEFORE TRUNCATE ON billing_hold
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();

CREATE FUNCTION billing_post_hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        UPDATE billing_account SET held = held + NEW.amount_nano_usd WHERE id = NEW.account_id;
    ELSIF OLD.state = 'open' AND NEW.state <> 'open' THEN
        UPDATE billing_account SET held = held - NEW.amount_nano_usd WHERE id = NEW.account_id;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER billing_hold_posts AFTER INSERT OR UPDATE OF state ON billing_hold
    FOR EACH ROW EXECUTE FUNCTION billing_post_hold();
"""

DROP = """
DROP TRIGGER billing_hold_posts ON billing_hold;
DROP TRIGGER billing_hold_no_truncate ON billing_hold;
DROP TRIGGER billing_hold_guard ON billing_hold;
DROP TRIGGER billing_account_guard ON billing_account;
DROP TRIGGER billing_entry_posts ON billing_entry;
DROP TRIGGER billing_entry_joins_open_transaction ON billing_entry;
DROP TRIGGER billing_transaction_zero_sum ON billing_ledgertransaction;
DROP TRIGGER billing_transaction_open ON billing_ledgertransaction;
DROP TRIGGER billing_usage_no_truncate ON billing_usage;
DROP TRIGGER billing_usage_append_only ON billing_usage;
DROP TRIGGER billing_transaction_no_truncate ON billing_ledgertransaction;
DROP TRIGGER billing_transaction_append_only ON billing_ledgertransaction;
DROP TRIGGER billing_entry_no_truncate ON billing_entry;
DROP TRIGGER billing_entry_append_only ON billing_entry;
DROP FUNCTION billing_post_hold(), billing_guard_hold(), billing_guard_account(), billing_post_entry(),
    billing_check_entry(), billing_check_zero_sum(), billing_open_transaction(), billing_refuse_change();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0002_usage_partitions")]
    operations = [migrations.RunSQL(CREATE, DROP)]
