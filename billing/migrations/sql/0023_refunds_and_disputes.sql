-- Refunds and disputes keep their terms, move forward only, and never give back more of a payment than was paid.

CREATE FUNCTION billing_check_given_back() RETURNS trigger LANGUAGE plpgsql AS $$
-- Refunds that did not fail and disputes that were not won: together at most the credit and the tax of their top-up.
DECLARE
    paid billing_topup;
    credit bigint;
    tax bigint;
BEGIN
    SELECT * INTO paid FROM billing_topup WHERE id = NEW.top_up_id FOR NO KEY UPDATE;
    SELECT coalesce(sum(back.credit), 0), coalesce(sum(back.tax), 0) INTO credit, tax FROM (
        SELECT amount_cents AS credit, tax_cents AS tax FROM billing_topuprefund
            WHERE top_up_id = paid.id AND state <> 'failed'
        UNION ALL
        SELECT credit_cents, tax_cents FROM billing_dispute WHERE top_up_id = paid.id AND state <> 'won'
    ) back;
    IF paid.state <> 'credited' OR credit > paid.amount_cents OR tax > paid.tax_cents THEN
        RAISE EXCEPTION 'refunds and disputes give back more of top-up % than was paid', paid.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_top_up_given_back_within';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER billing_topuprefund_within AFTER INSERT OR UPDATE ON billing_topuprefund
    FOR EACH ROW EXECUTE FUNCTION billing_check_given_back();
CREATE TRIGGER billing_dispute_within AFTER INSERT OR UPDATE ON billing_dispute
    FOR EACH ROW EXECUTE FUNCTION billing_check_given_back();

CREATE FUNCTION billing_guard_refund() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    moved bigint;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'refunds are never deleted' USING ERRCODE = 'check_violation';
    ELSIF TG_OP = 'INSERT' THEN
        IF NEW.state <> 'requested' THEN
            RAISE EXCEPTION 'a refund starts as requested' USING ERRCODE = 'check_violation';
        END IF;
        SELECT sum(e.amount) INTO moved FROM billing_ledgertransaction t
            JOIN billing_entry e ON e.transaction_id = t.id JOIN billing_account a ON a.id = e.account_id
            WHERE t.id = NEW.ledger_transaction_id AND t.kind = 'top_up_refund' AND t.reference = NEW.id::text
                AND a.kind = 'clearing';
        IF moved IS DISTINCT FROM (NEW.amount_cents::bigint + NEW.tax_cents) * 10000000 THEN
            RAISE EXCEPTION 'refund % without the entries of its amount', NEW.id
                USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_top_up_refund_has_entries';
        END IF;
        RETURN NEW;
    END IF;
    IF (NEW.id, NEW.top_up_id, NEW.amount_cents, NEW.tax_cents, NEW.ledger_transaction_id, NEW.created_at)
        IS DISTINCT FROM
       (OLD.id, OLD.top_up_id, OLD.amount_cents, OLD.tax_cents, OLD.ledger_transaction_id, OLD.created_at)
       OR (OLD.stripe_refund_id IS NOT NULL AND NEW.stripe_refund_id IS DISTINCT FROM OLD.stripe_refund_id)
       OR (OLD.sent_at IS NOT NULL AND NEW.sent_at IS DISTINCT FROM OLD.sent_at) THEN
        RAISE EXCEPTION 'a refund keeps its terms' USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.state <> OLD.state
       AND (OLD.state, NEW.state) NOT IN (('requested', 'sent'), ('requested', 'failed'), ('sent', 'failed')) THEN
        RAISE EXCEPTION 'a refund does not go from % to %', OLD.state, NEW.state USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.state = 'failed' AND OLD.state <> 'failed' AND NOT EXISTS (
        SELECT 1 FROM billing_ledgertransaction WHERE kind = 'refund_returned' AND reference = NEW.id::text) THEN
        RAISE EXCEPTION 'refund % failed without the return of its credit', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_top_up_refund_returned';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER billing_topuprefund_guard BEFORE INSERT OR UPDATE OR DELETE ON billing_topuprefund
    FOR EACH ROW EXECUTE FUNCTION billing_guard_refund();

CREATE FUNCTION billing_guard_dispute() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'disputes are never deleted' USING ERRCODE = 'check_violation';
    ELSIF TG_OP = 'INSERT' THEN
        IF NEW.state <> 'open' OR NEW.frozen_nano_usd <> 0 THEN
            RAISE EXCEPTION 'a dispute starts open, and with nothing frozen' USING ERRCODE = 'check_violation';
        END IF;
        RETURN NEW;
    END IF;
    IF (NEW.id, NEW.top_up_id, NEW.opened_at) IS DISTINCT FROM (OLD.id, OLD.top_up_id, OLD.opened_at) THEN
        RAISE EXCEPTION 'a dispute keeps its payment' USING ERRCODE = 'check_violation';
    END IF;
    -- The bank only asks at first: the amount is final once it takes the money. Its parts grow when a refund has failed.
    IF OLD.status NOT LIKE 'warning%' AND (NEW.amount_cents <> OLD.amount_cents
        OR NEW.credit_cents < OLD.credit_cents OR NEW.tax_cents < OLD.tax_cents) THEN
        RAISE EXCEPTION 'a dispute keeps its amount' USING ERRCODE = 'check_violation';
    END IF;
    IF OLD.state <> 'open' AND (NEW.state, NEW.frozen_nano_usd, NEW.credit_cents, NEW.tax_cents, NEW.closed_at)
        IS DISTINCT FROM (OLD.state, OLD.frozen_nano_usd, OLD.credit_cents, OLD.tax_cents, OLD.closed_at) THEN
        RAISE EXCEPTION 'dispute % is decided', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.frozen_nano_usd < OLD.frozen_nano_usd OR NEW.frozen_nano_usd > NEW.credit_cents::bigint * 10000000 THEN
        RAISE EXCEPTION 'dispute % freezes its own credit, and lets go of it when it is decided', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_dispute_freezes_its_credit';
    END IF;
    -- The entries are written first.
    IF (NEW.frozen_nano_usd > OLD.frozen_nano_usd AND NOT EXISTS (
            SELECT 1 FROM billing_ledgertransaction
            WHERE kind = 'dispute_frozen' AND reference = NEW.id || ':' || OLD.frozen_nano_usd))
       OR (NEW.state = 'won' AND OLD.state = 'open' AND NEW.frozen_nano_usd > 0 AND NOT EXISTS (
            SELECT 1 FROM billing_ledgertransaction WHERE kind = 'dispute_won' AND reference = NEW.id))
       OR (NEW.state = 'lost' AND OLD.state = 'open' AND NOT EXISTS (
            SELECT 1 FROM billing_ledgertransaction WHERE kind = 'dispute_lost' AND reference = NEW.id)) THEN
        RAISE EXCEPTION 'dispute % moves without its entries', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_dispute_has_entries';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER billing_dispute_guard BEFORE INSERT OR UPDATE OR DELETE ON billing_dispute
    FOR EACH ROW EXECUTE FUNCTION billing_guard_dispute();

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['topuprefund', 'dispute'] LOOP
        EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()',
            'billing_' || name || '_no_truncate', 'billing_' || name);
    END LOOP;
END $$;
