-- Back to the schema of migration 0012.

DROP FUNCTION billing_split_id(uuid[], integer[], text[]);
DROP TRIGGER billing_split_part_joins_open_split ON billing_splitpart;
DROP TRIGGER billing_split_whole ON billing_split;
DROP FUNCTION billing_check_split_part(), billing_check_split();
ALTER TABLE billing_account DROP CONSTRAINT billing_account_known_kind;
DROP TABLE billing_accountkind;
CREATE OR REPLACE FUNCTION billing_guard_account() RETURNS trigger LANGUAGE plpgsql AS $$
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
