-- Row locks for a role that may not update the rows: SELECT FOR UPDATE would need that right.

CREATE FUNCTION billing_lock_transaction(p_id bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM billing_ledgertransaction WHERE id = p_id FOR UPDATE;
END $$;

CREATE FUNCTION billing_lock_account(p_id bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM billing_account WHERE id = p_id FOR NO KEY UPDATE;
END $$;
