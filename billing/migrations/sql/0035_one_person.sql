-- Organizations that belong together, for what is given once: free amounts, ranking, limits of new customers.

CREATE INDEX billing_user_mailbox ON accounts_user (regexp_replace(lower(email), '\+[^@]*@', '@'));

CREATE FUNCTION billing_tied(p_organization uuid) RETURNS SETOF uuid LANGUAGE sql STABLE AS $$
-- The organization itself, and those that share with it a member, a member's mailbox (a+1@x is a@x), or a card.
    SELECT p_organization
    UNION
    SELECT m.organization_id FROM accounts_membership own
        JOIN accounts_user u ON u.id = own.user_id
        JOIN accounts_user same ON regexp_replace(lower(same.email), '\+[^@]*@', '@') = regexp_replace(lower(u.email), '\+[^@]*@', '@')
        JOIN accounts_membership m ON m.user_id = same.id
        WHERE own.organization_id = p_organization
    UNION
    SELECT other.organization_id FROM billing_carduse own
        JOIN billing_carduse other ON other.fingerprint = own.fingerprint
        WHERE own.organization_id = p_organization
$$;

CREATE FUNCTION billing_kin(p_organization uuid) RETURNS uuid[] LANGUAGE sql STABLE AS $$
-- The organizations that are one with this one, also by way of others, itself among them: sorted, at most 1,000.
    WITH RECURSIVE kin (id) AS (
        SELECT p_organization
        UNION
        SELECT found.id FROM kin CROSS JOIN LATERAL billing_tied(kin.id) AS found (id)
    ), few AS (SELECT id FROM kin LIMIT 1000)
    SELECT array_agg(id ORDER BY id) FROM few
$$;

CREATE FUNCTION billing_free_rest(
    p_item billing_hold_item, p_kin uuid[], p_kind text, p_month date, p_free bigint, p_wanted bigint
) RETURNS bigint LANGUAGE plpgsql AS $$
-- The rest of the free allowance of this listing for this customer and its kin, at most p_wanted. Holds of their wallets
-- take turns.
DECLARE
    used bigint;
BEGIN
    IF coalesce(p_free, 0) <= 0 OR p_wanted <= 0 THEN
        RETURN 0;
    END IF;
    INSERT INTO billing_allowance (organization_id, model_id, kind, month)
        VALUES (p_item.organization_id, p_item.model_id, p_kind, p_month) ON CONFLICT DO NOTHING;
    PERFORM 1 FROM billing_allowance
        WHERE (organization_id, model_id, kind, month) = (p_item.organization_id, p_item.model_id, p_kind, p_month)
        FOR NO KEY UPDATE;
    SELECT sum(used_nano_usd + held_nano_usd) INTO used FROM billing_allowance
        WHERE organization_id = ANY (p_kin) AND (model_id, kind, month) = (p_item.model_id, p_kind, p_month);
    RETURN greatest(0, least(p_wanted, p_free - used));
END $$;

CREATE OR REPLACE FUNCTION billing_earlier_hold(p_account bigint, p_item billing_hold_item) RETURNS billing_hold
LANGUAGE plpgsql AS $$
-- The hold that stands against this item: of the same prediction, or of the same idempotency key within 24 h.
DECLARE
    earlier billing_hold;
BEGIN
    SELECT * INTO earlier FROM billing_hold h WHERE h.id = p_item.id;
    IF NOT FOUND AND p_item.idempotency_key IS NOT NULL THEN
        SELECT * INTO earlier FROM billing_hold h
            WHERE h.account_id = p_account AND h.idempotency_key = p_item.idempotency_key
            ORDER BY h.created_at DESC LIMIT 1;
        IF FOUND AND (earlier.closed_at < now() - interval '24 hours' OR (earlier.state = 'released'
                AND (earlier.close_reason = 'refused' OR earlier.request_hash = decode(p_item.request_hash, 'hex')))) THEN
            earlier := NULL;  -- forgotten, refused, or free: the key is not used up
        END IF;
    END IF;
    RETURN earlier;
END $$;

CREATE OR REPLACE FUNCTION billing_release_holds(p_ids uuid[], p_reasons text[]) RETURNS uuid[] LANGUAGE plpgsql AS $$
-- Releases those that are open, and returns them. Once it is committed, nothing can charge these predictions any more.
-- A call that was refused is none of its run's.
DECLARE
    released uuid[];
BEGIN
    PERFORM 1 FROM billing_hold WHERE id = ANY (p_ids) AND state = 'open' ORDER BY id FOR NO KEY UPDATE;
    released := ARRAY(SELECT id FROM billing_hold WHERE id = ANY (p_ids) AND state = 'open');
    IF cardinality(released) > 0 THEN
        PERFORM billing_lock_closing(released);
        UPDATE billing_hold h SET state = 'released', closed_at = now(), close_reason = r.reason, allowance_used_nano_usd = 0
            FROM (SELECT DISTINCT ON (id) id, reason FROM unnest(p_ids, p_reasons) AS u (id, reason)) r
            WHERE h.id = r.id AND h.id = ANY (released);
        UPDATE billing_run r SET calls = r.calls - refused.calls
            FROM (SELECT run_id, count(*) AS calls FROM billing_hold
                WHERE id = ANY (released) AND run_id IS NOT NULL AND close_reason = 'refused' GROUP BY run_id) refused
            WHERE r.node_id = refused.run_id;
        PERFORM billing_close_counters(released);
    END IF;
    RETURN released;
END $$;
