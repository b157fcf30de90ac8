-- A payout's terms never change, its state moves forward only, and nobody deletes it.

CREATE FUNCTION billing_guard_payout() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'payouts are never deleted' USING ERRCODE = 'check_violation';
    ELSIF TG_OP = 'INSERT' THEN
        IF NEW.state <> 'created' THEN
            RAISE EXCEPTION 'a payout starts as created' USING ERRCODE = 'check_violation';
        END IF;
        RETURN NEW;
    END IF;
    IF (NEW.id, NEW.organization_id, NEW.stripe_account_id, NEW.amount_cents, NEW.ledger_transaction_id, NEW.created_at)
        IS DISTINCT FROM
       (OLD.id, OLD.organization_id, OLD.stripe_account_id, OLD.amount_cents, OLD.ledger_transaction_id, OLD.created_at)
    THEN
        RAISE EXCEPTION 'a payout keeps its terms' USING ERRCODE = 'check_violation';
    END IF;
    IF (OLD.transfer_id IS NOT NULL AND NEW.transfer_id IS DISTINCT FROM OLD.transfer_id)
        OR (OLD.bank_payout_id IS NOT NULL AND NEW.bank_payout_id IS DISTINCT FROM OLD.bank_payout_id)
        OR (OLD.return_id IS NOT NULL AND NEW.return_id IS DISTINCT FROM OLD.return_id) THEN
        RAISE EXCEPTION 'a payout keeps the objects at Stripe that it has' USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.state <> OLD.state AND (OLD.state, NEW.state) NOT IN (
        ('created', 'transferred'), ('created', 'returned'),
        ('transferred', 'paying'), ('transferred', 'failed'), ('transferred', 'returned'),
        ('paying', 'paid'), ('paying', 'failed'),
        ('paid', 'failed'),
        ('failed', 'returned')
    ) THEN
        RAISE EXCEPTION 'a payout does not go from % to %', OLD.state, NEW.state USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER billing_payout_guard BEFORE INSERT OR UPDATE OR DELETE ON billing_payout
    FOR EACH ROW EXECUTE FUNCTION billing_guard_payout();
CREATE TRIGGER billing_payout_no_truncate BEFORE TRUNCATE ON billing_payout
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
