-- Answers that are kept for retries under an idempotency key. A prediction with such a key is charged only together with
-- its kept answer, so there is no charge whose answer cannot be fetched.

CREATE FUNCTION billing_keep_answers(p_ids uuid[], p_answers bytea[]) RETURNS void LANGUAGE plpgsql AS $$
-- Keeps the answers of holds that are open and have an idempotency key; null is none. It locks all of p_ids.
BEGIN
    PERFORM 1 FROM billing_hold WHERE id = ANY (p_ids) ORDER BY id FOR NO KEY UPDATE;
    -- A key names its answer until 24 h after the charge, which may follow some minutes later.
    INSERT INTO billing_keptanswer (prediction_id, organization_id, content, expires_at)
        SELECT h.id, h.organization_id, kept.content, now() + interval '24 hours 30 minutes'
        FROM unnest(p_ids, p_answers) AS kept (id, content) JOIN billing_hold h ON h.id = kept.id
        WHERE kept.content IS NOT NULL AND h.state = 'open' AND h.idempotency_key IS NOT NULL
        ON CONFLICT (prediction_id) DO NOTHING;
END $$;

CREATE FUNCTION billing_settle_kept(p_items jsonb, p_ids uuid[], p_answers bytea[])
RETURNS TABLE (id uuid, outcome text, cost bigint) LANGUAGE plpgsql AS $$
-- Settles as billing_settle_holds does, and keeps the answers of p_ids, all the items, in the same database transaction.
#variable_conflict use_column
BEGIN
    PERFORM billing_keep_answers(p_ids, p_answers);
    RETURN QUERY SELECT * FROM billing_settle_holds(p_items);
    DELETE FROM billing_keptanswer k USING billing_hold h
        WHERE k.prediction_id = ANY (p_ids) AND h.id = k.prediction_id AND h.state <> 'settled';
END $$;

CREATE FUNCTION billing_record_kept_delivery(p_id uuid, p_attempt integer, p_tokens bigint, p_answer bytea)
RETURNS text LANGUAGE plpgsql AS $$
-- Records a verdict as billing_record_delivery does, and keeps what was delivered.
DECLARE
    outcome text;
BEGIN
    PERFORM billing_keep_answers(ARRAY[p_id], ARRAY[p_answer]);
    outcome := billing_record_delivery(p_id, p_attempt, p_tokens);
    DELETE FROM billing_keptanswer k USING billing_hold h
        WHERE k.prediction_id = p_id AND h.id = p_id AND h.state <> 'settled' AND outcome <> 'recorded';
    RETURN outcome;
END $$;

CREATE OR REPLACE FUNCTION billing_settle_outcomes(p_items billing_settle_item[])
RETURNS TABLE (id uuid, outcome text, charged_tokens bigint) LANGUAGE sql STABLE AS $$
-- The outcome of each item, whose hold is locked. Outcomes: settle, release (nothing was delivered, or the answer that a
-- key names is not kept), already_settled, already_released, late (tokens for a hold that was released before),
-- other_attempt, unknown.
    SELECT i.id, CASE
        WHEN h.id IS NULL THEN 'unknown'
        WHEN h.attempt <> i.attempt OR h.replica_id IS DISTINCT FROM i.replica_id THEN 'other_attempt'
        WHEN h.state = 'settled' THEN 'already_settled'
        -- Nothing was delivered: free. (A prompt that is only scored asks for no tokens, and is paid for.)
        WHEN least(i.completion_tokens, h.delivered_tokens) = 0 AND (h.max_tokens > 0 OR h.delivered_tokens = 0)
            THEN CASE h.state WHEN 'open' THEN 'release' ELSE 'already_released' END
        WHEN h.state = 'released' THEN 'late'
        WHEN h.idempotency_key IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM billing_keptanswer k WHERE k.prediction_id = h.id) THEN 'release'
        ELSE 'settle' END,
        least(i.completion_tokens, h.delivered_tokens)  -- least() leaves a null out
    FROM unnest(p_items) i LEFT JOIN billing_hold h ON h.id = i.id
$$;

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
                AND earlier.request_hash = decode(p_item.request_hash, 'hex'))) THEN
            earlier := NULL;  -- forgotten, or it charged nothing: the same request may be tried again under the same key
        END IF;
    END IF;
    RETURN earlier;
END $$;

CREATE FUNCTION billing_check_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM billing_keptanswer WHERE prediction_id = NEW.id) THEN
        RAISE EXCEPTION 'prediction % has an idempotency key and no kept answer', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_hold_answer_kept';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER billing_hold_answer_kept AFTER UPDATE ON billing_hold FOR EACH ROW
    WHEN (NEW.state = 'settled' AND NEW.idempotency_key IS NOT NULL) EXECUTE FUNCTION billing_check_kept();
