-- Papers get the next number of their series in the transaction that writes them, so that no series has a gap.

CREATE FUNCTION billing_issue_paper(
    p_kind text, p_organization uuid, p_subject text, p_period date, p_corrects uuid, p_total bigint, p_tax bigint,
    p_content jsonb
) RETURNS uuid LANGUAGE plpgsql AS $$
-- The paper of this kind and subject; issued now, with the next number of this year (UTC), if there is none yet.
DECLARE
    wanted text := CASE p_kind WHEN 'receipt' THEN 'R' WHEN 'credit_note' THEN 'CN' WHEN 'invoice' THEN 'INV'
        WHEN 'earnings' THEN 'ES' END || to_char(now() AT TIME ZONE 'UTC', '-YYYY');
    found_id uuid;
    next_number integer;
BEGIN
    INSERT INTO billing_papernumber (series) VALUES (wanted) ON CONFLICT DO NOTHING;
    -- Issuers of a series take turns from here to their commit.
    PERFORM 1 FROM billing_papernumber WHERE series = wanted FOR UPDATE;
    SELECT id INTO found_id FROM billing_paper WHERE kind = p_kind AND subject = p_subject;
    IF found_id IS NULL THEN
        UPDATE billing_papernumber SET last = last + 1 WHERE series = wanted RETURNING last INTO next_number;
        INSERT INTO billing_paper (id, kind, series, number, organization_id, subject, period, corrects_id,
                total_nano_usd, tax_nano_usd, content)
            VALUES (gen_random_uuid(), p_kind, wanted, next_number, p_organization, p_subject, p_period, p_corrects,
                p_total, p_tax, p_content)
            RETURNING id INTO found_id;
    END IF;
    RETURN found_id;
END $$;

CREATE FUNCTION billing_number_follows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.series <> OLD.series OR NEW.last <> OLD.last + 1 THEN
        RAISE EXCEPTION 'numbers of papers go up by one' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER billing_papernumber_follows BEFORE UPDATE ON billing_papernumber
    FOR EACH ROW EXECUTE FUNCTION billing_number_follows();
CREATE TRIGGER billing_papernumber_no_delete BEFORE DELETE ON billing_papernumber
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['paper', 'paymentdetail'] LOOP
        EXECUTE format('CREATE TRIGGER %I BEFORE UPDATE OR DELETE ON %I FOR EACH ROW EXECUTE FUNCTION billing_refuse_change()',
            'billing_' || name || '_append_only', 'billing_' || name);
        EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()',
            'billing_' || name || '_no_truncate', 'billing_' || name);
    END LOOP;
END $$;
