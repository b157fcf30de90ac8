DROP TRIGGER billing_hold_answer_kept ON billing_hold;
DROP FUNCTION billing_check_kept();
DROP FUNCTION billing_settle_kept(jsonb, uuid[], bytea[]);
DROP FUNCTION billing_record_kept_delivery(uuid, integer, bigint, bytea);
DROP FUNCTION billing_keep_answers(uuid[], bytea[]);

CREATE OR REPLACE FUNCTION billing_settle_outcomes(p_items billing_settle_item[])
RETURNS TABLE (id uuid, outcome text, charged_tokens bigint) LANGUAGE sql STABLE AS $$
-- The outcome of each item, whose hold is locked. Outcomes: settle, release (nothing was delivered), already_settled,
-- already_released, late (tokens for a hold that was released before), other_attempt, unknown.
    SELECT i.id, CASE
        WHEN h.id IS NULL THEN 'unknown'
        WHEN h.attempt <> i.attempt OR h.replica_id IS DISTINCT FROM i.replica_id THEN 'other_attempt'
        WHEN h.state = 'settled' THEN 'already_settled'
        -- Nothing was delivered: free. (A prompt that is only scored asks for no tokens, and is paid for.)
        WHEN least(i.completion_tokens, h.delivered_tokens) = 0 AND (h.max_tokens > 0 OR h.delivered_tokens = 0)
            THEN CASE h.state WHEN 'open' THEN 'release' ELSE 'already_released' END
        WHEN h.state = 'released' THEN 'late'
        ELSE 'settle' END,
        least(i.completion_tokens, h.delivered_tokens)  -- least() leaves a null out
    FROM unnest(p_items) i LEFT JOIN billing_hold h ON h.id = i.id
$$;

CREATE OR REPLACE FUNCTION billing_earlier_hold(p_account bigint, p_item billing_hold_item) RETURNS billing_hold LANGUAGE plpgsql AS $$
-- The hold that stands against this item: of the same prediction, or of the same idempotency key.
DECLARE
    earlier billing_hold;
BEGIN
    SELECT * INTO earlier FROM billing_hold h WHERE h.id = p_item.id;
    IF NOT FOUND AND p_item.idempotency_key IS NOT NULL THEN
        SELECT * INTO earlier FROM billing_hold h
            WHERE h.account_id = p_account AND h.idempotency_key = p_item.idempotency_key
            ORDER BY h.created_at DESC LIMIT 1;
        IF FOUND AND earlier.state = 'released' AND earlier.request_hash = decode(p_item.request_hash, 'hex') THEN
            earlier := NULL;  -- charged nothing: the same request may be tried again under the same key
        END IF;
    END IF;
    RETURN earlier;
END $$;
