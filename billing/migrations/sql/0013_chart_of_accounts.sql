-- Kinds of accounts are data. Each account copies from its kind whether its balance may be negative.

CREATE TABLE billing_accountkind (
    code varchar(24) PRIMARY KEY,
    rank smallint NOT NULL UNIQUE,
    owner varchar(12) NOT NULL CHECK (owner IN ('organization', 'platform')),
    may_be_negative boolean NOT NULL,
    family varchar(24) NOT NULL,
    title varchar(60) NOT NULL,
    meaning text NOT NULL
);
INSERT INTO billing_accountkind (rank, code, owner, may_be_negative, family, title, meaning) VALUES
    (10, 'customer_credit', 'organization', false, 'customer', 'Credit', 'prepaid and promotional credit to spend'),
    (20, 'creator_reserve', 'organization', false, 'creator', 'Earnings in reserve',
         'earned, and kept back until disputes are unlikely'),
    (30, 'creator_payable', 'organization', false, 'creator', 'Earnings to pay out', 'owed to the payee'),
    (40, 'payout_in_transit', 'organization', false, 'creator', 'Payouts on their way',
         'sent to the payee''s bank and not confirmed yet'),
    (50, 'receivable', 'organization', true, 'creator', 'Owed to the platform',
         '(negative) paid out and later taken back; later earnings are set against it'),
    (60, 'dispute', 'organization', false, 'customer', 'Credit under dispute',
         'credit whose payment is disputed: frozen until the bank decides'),
    (110, 'platform_revenue', 'platform', true, 'platform_revenue', 'Platform revenue', 'earned by the platform'),
    (120, 'breakage', 'platform', true, 'breakage', 'Expired credit', 'promotional credit that expired unspent'),
    (130, 'losses', 'platform', true, 'losses', 'Losses', '(negative) lost disputes that nobody else bears'),
    (140, 'promotion', 'platform', true, 'promotion', 'Credit given away', '(negative) promotional credit'),
    (150, 'tax', 'platform', false, 'tax', 'Tax', 'collected for tax offices'),
    (160, 'clearing', 'platform', true, 'clearing', 'Clearing', 'between two systems; zero when all has arrived'),
    (170, 'stripe_cash', 'platform', true, 'stripe_cash', 'Cash at Stripe', '(negative) cash at Stripe'),
    (180, 'stripe_fees', 'platform', true, 'stripe_fees', 'Stripe''s fees', '(negative) fees paid');

ALTER TABLE billing_account DISABLE TRIGGER billing_account_guard;
UPDATE billing_account SET may_be_negative = true
    WHERE kind IN (SELECT code FROM billing_accountkind WHERE may_be_negative);
ALTER TABLE billing_account ENABLE TRIGGER billing_account_guard;
ALTER TABLE billing_account
    ADD CONSTRAINT billing_account_known_kind FOREIGN KEY (kind) REFERENCES billing_accountkind (code);

CREATE OR REPLACE FUNCTION billing_guard_account() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    chart billing_accountkind;
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.posted <> 0 OR NEW.held <> 0 THEN
            RAISE EXCEPTION 'an account starts empty' USING ERRCODE = 'check_violation';
        END IF;
        SELECT * INTO chart FROM billing_accountkind WHERE code = NEW.kind;
        IF (chart.owner = 'organization') <> (NEW.organization_id IS NOT NULL) THEN
            RAISE EXCEPTION 'an account of kind % has the wrong owner (billing_account_owner_fits_kind)', NEW.kind
                USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_account_owner_fits_kind';
        END IF;
        NEW.may_be_negative := coalesce(chart.may_be_negative, false);
    ELSIF (NEW.id, NEW.organization_id, NEW.kind, NEW.currency, NEW.may_be_negative) IS DISTINCT FROM
          (OLD.id, OLD.organization_id, OLD.kind, OLD.currency, OLD.may_be_negative) THEN
        RAISE EXCEPTION 'an account keeps its owner, kind and currency' USING ERRCODE = 'check_violation';
    ELSIF (NEW.posted, NEW.held) IS DISTINCT FROM (OLD.posted, OLD.held) AND pg_trigger_depth() < 2 THEN
        -- Depth 1 is this trigger alone, so the UPDATE did not come from an entry or a hold.
        RAISE EXCEPTION 'balances change through entries and holds alone' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER billing_accountkind_append_only BEFORE UPDATE OR DELETE ON billing_accountkind
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_accountkind_no_truncate BEFORE TRUNCATE ON billing_accountkind
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();

-- Splits never change, and a split is whole when it commits --------------------------------------------------------------

CREATE FUNCTION billing_check_split() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT coalesce(sum(basis_points), 0) FROM billing_splitpart WHERE split_id = NEW.id) <> 10000 THEN
        RAISE EXCEPTION 'the parts of split % are not 10,000 basis points', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_split_is_whole';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER billing_split_whole AFTER INSERT ON billing_split
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_check_split();

CREATE FUNCTION billing_check_split_part() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM billing_split
                   WHERE id = NEW.split_id AND database_transaction = pg_current_xact_id()::text::bigint) THEN
        RAISE EXCEPTION 'split % is closed or unknown', NEW.split_id
            USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'billing_split_closed';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER billing_split_part_joins_open_split BEFORE INSERT ON billing_splitpart
    FOR EACH ROW EXECUTE FUNCTION billing_check_split_part();

CREATE FUNCTION billing_split_id(p_organizations uuid[], p_basis_points integer[], p_reasons text[])
RETURNS bigint LANGUAGE plpgsql AS $$
-- The split with these parts, in this order; written if there is none yet.
DECLARE
    key bytea := sha256(convert_to(array_to_string(p_organizations, ',', '-') || '|' || array_to_string(p_basis_points, ',')
        || '|' || array_to_string(p_reasons, ','), 'UTF8'));
    found_id bigint;
BEGIN
    SELECT id INTO found_id FROM billing_split WHERE digest = key;
    IF found_id IS NULL THEN
        INSERT INTO billing_split (digest) VALUES (key) ON CONFLICT DO NOTHING RETURNING id INTO found_id;
        IF found_id IS NULL THEN  -- another process has just written it
            SELECT id INTO found_id FROM billing_split WHERE digest = key;
        ELSE
            INSERT INTO billing_splitpart (split_id, place, organization_id, basis_points, reason)
                SELECT found_id, part.place, part.organization, part.basis_points, part.reason
                FROM unnest(p_organizations, p_basis_points, p_reasons)
                    WITH ORDINALITY AS part (organization, basis_points, reason, place);
        END IF;
    END IF;
    RETURN found_id;
END $$;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['split', 'splitpart', 'correction'] LOOP
        EXECUTE format('CREATE TRIGGER %I BEFORE UPDATE OR DELETE ON %I FOR EACH ROW EXECUTE FUNCTION billing_refuse_change()',
            'billing_' || name || '_append_only', 'billing_' || name);
        EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()',
            'billing_' || name || '_no_truncate', 'billing_' || name);
    END LOOP;
    FOREACH name IN ARRAY ARRAY['lot', 'budgetnode', 'allowance'] LOOP
        EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()',
            'billing_' || name || '_no_truncate', 'billing_' || name);
    END LOOP;
END $$;
