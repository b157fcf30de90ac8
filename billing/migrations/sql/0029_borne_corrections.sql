-- Corrections that one of those who earned a charge bears alone: the platform out of its fee, or one payee out of its share.

DROP FUNCTION billing_correct_prediction(uuid, bigint, text, uuid);
DROP FUNCTION billing_take_back(bigint, bigint, bigint);

CREATE FUNCTION billing_take_back(
    p_original bigint, p_wallet bigint, p_amount bigint, p_bearer text, p_organization uuid
) RETURNS TABLE (account_id bigint, amount bigint) LANGUAGE plpgsql AS $$
-- Takes an amount from those who earned a charge, in proportion to what each still has of it (largest remainder); where one
-- bears it, from that one alone. A payee gives from its reserve first, then from what is payable, and owes the rest. All
-- accounts are locked here, in order.
#variable_conflict use_column
DECLARE
    side record;
    source record;
    due bigint;
    part bigint;
BEGIN
    PERFORM billing_account_id('receivable', a.organization_id) FROM billing_entry e JOIN billing_account a ON a.id = e.account_id
        WHERE e.transaction_id = p_original AND e.account_id <> p_wallet AND a.organization_id IS NOT NULL;
    PERFORM 1 FROM billing_account a JOIN billing_accountkind k ON k.code = a.kind
        WHERE k.family = 'creator' AND a.organization_id IN (
            SELECT x.organization_id FROM billing_entry e JOIN billing_account x ON x.id = e.account_id
            WHERE e.transaction_id = p_original)
        ORDER BY k.rank, a.id FOR NO KEY UPDATE OF a;
    FOR side IN
        WITH party AS (
            SELECT a.organization_id, k.family, sum(e.amount)::numeric AS rest
            FROM billing_entry e JOIN billing_account a ON a.id = e.account_id JOIN billing_accountkind k ON k.code = a.kind
            WHERE e.account_id <> p_wallet AND (p_bearer = 'all' OR a.organization_id IS NOT DISTINCT FROM p_organization)
                AND (e.transaction_id = p_original OR e.transaction_id IN (
                    SELECT id FROM billing_ledgertransaction WHERE corrects_id = p_original))
            GROUP BY a.organization_id, k.family HAVING sum(e.amount) > 0
        ), divided AS (
            SELECT *, div(rest * p_amount, sum(rest) OVER ()) AS base, mod(rest * p_amount, sum(rest) OVER ()) AS remainder
            FROM party
        )
        SELECT organization_id, (base + CASE WHEN row_number() OVER (ORDER BY remainder DESC, organization_id)
            <= p_amount - sum(base) OVER () THEN 1 ELSE 0 END)::bigint AS share FROM divided
    LOOP
        due := side.share;
        IF side.organization_id IS NULL AND due > 0 THEN
            RETURN QUERY SELECT billing_account_id('platform_revenue', NULL), -due;
            CONTINUE;
        END IF;
        FOR source IN
            SELECT a.id, a.kind, a.posted FROM billing_account a JOIN billing_accountkind k ON k.code = a.kind
            WHERE a.organization_id = side.organization_id AND a.kind IN ('creator_reserve', 'creator_payable', 'receivable')
            ORDER BY k.rank
        LOOP
            part := CASE source.kind WHEN 'receivable' THEN due ELSE least(due, source.posted) END;
            due := due - part;
            IF part > 0 THEN
                RETURN QUERY SELECT source.id, -part;
            END IF;
        END LOOP;
    END LOOP;
END $$;

CREATE FUNCTION billing_share_left(p_original bigint, p_wallet bigint, p_organization uuid) RETURNS bigint
LANGUAGE sql STABLE AS $$
-- What one of those who earned a charge still has of it: a payee, or the platform (null).
    SELECT coalesce(sum(e.amount), 0)::bigint FROM billing_entry e JOIN billing_account a ON a.id = e.account_id
    WHERE e.account_id <> p_wallet AND a.organization_id IS NOT DISTINCT FROM p_organization
        AND (e.transaction_id = p_original
            OR e.transaction_id IN (SELECT id FROM billing_ledgertransaction WHERE corrects_id = p_original))
$$;

CREATE FUNCTION billing_correct_prediction(p_id uuid, p_amount bigint, p_reason text, p_correction uuid,
    p_bearer text DEFAULT 'all', p_organization uuid DEFAULT NULL)
RETURNS TABLE (outcome text, amount bigint) LANGUAGE plpgsql AS $$
-- Gives back a part of the charge of a settled prediction, or all that is left of it (p_amount null). Once per p_correction.
-- Everybody who earned it bears it (p_bearer all), or one alone: platform, or the payee p_organization. One alone gives at
-- most what is left of its share, so that p_amount is a limit then.
-- Outcomes: corrected, already (by this id, or nothing is left), not_settled, too_much, not_positive.
#variable_conflict use_column
DECLARE
    hold billing_hold;
    original bigint;
    ledger_id bigint;
    uncorrected bigint;
    rest bigint;
    back bigint;
    closed date;
BEGIN
    SELECT * INTO hold FROM billing_hold WHERE id = p_id AND state = 'settled' FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'not_settled', 0::bigint;
        RETURN;
    END IF;
    SELECT id INTO original FROM billing_ledgertransaction WHERE kind = 'prediction' AND reference = p_id::text;
    SELECT hold.cost_nano_usd - coalesce(sum(amount_nano_usd), 0) INTO uncorrected
        FROM billing_correction WHERE prediction_id = p_id;
    rest := uncorrected;
    IF p_bearer <> 'all' THEN
        rest := greatest(0, least(uncorrected, billing_share_left(original, hold.account_id, p_organization)));
    END IF;
    back := CASE WHEN p_bearer = 'all' THEN coalesce(p_amount, rest) ELSE least(p_amount, rest) END;
    IF EXISTS (SELECT 1 FROM billing_correction WHERE id = p_correction)
       OR (p_amount IS NULL AND EXISTS (SELECT 1 FROM billing_correction WHERE prediction_id = p_id) AND rest = 0)
       OR (p_bearer <> 'all' AND rest = 0) THEN
        RETURN QUERY SELECT 'already', 0::bigint;
        RETURN;
    ELSIF back > rest THEN
        RETURN QUERY SELECT 'too_much', rest;
        RETURN;
    ELSIF back < 0 OR (back = 0 AND hold.cost_nano_usd > 0) THEN
        RETURN QUERY SELECT 'not_positive', rest;
        RETURN;
    END IF;
    PERFORM billing_lock_closing(ARRAY[p_id]);
    IF back > 0 THEN
        INSERT INTO billing_ledgertransaction (kind, reference, corrects_id, memo)
            VALUES ('correction', p_correction::text, original, p_reason) RETURNING id INTO ledger_id;
    END IF;
    INSERT INTO billing_correction (id, prediction_id, amount_nano_usd, reason, transaction_id, bearer, bearer_organization_id)
        VALUES (p_correction, p_id, back, p_reason, ledger_id, p_bearer, p_organization);
    INSERT INTO billing_outbox (topic, key, payload) VALUES ('prediction.corrected', p_correction::text, jsonb_build_object(
        'prediction_id', p_id, 'organization_id', hold.organization_id, 'correction_id', p_correction,
        'amount_nano_usd', back, 'cost_nano_usd', hold.cost_nano_usd, 'reason', p_reason));
    IF back > 0 THEN
        INSERT INTO billing_entry (transaction_id, account_id, lot_id, amount)
            SELECT ledger_id, account_id, lot_id, amount
                FROM billing_give_back(original, hold.account_id, ledger_id, back)
            UNION ALL
            SELECT ledger_id, account_id, NULL, amount
                FROM billing_take_back(original, hold.account_id, back, p_bearer, p_organization);
        closed := (hold.closed_at AT TIME ZONE 'UTC')::date;
        UPDATE billing_budgetnode n SET spent_total_nano_usd = greatest(0, n.spent_total_nano_usd - back),
            spent_today_nano_usd = greatest(0, n.spent_today_nano_usd - CASE WHEN n.day = closed THEN back ELSE 0 END),
            spent_this_month_nano_usd = greatest(0, n.spent_this_month_nano_usd
                - CASE WHEN n.month = date_trunc('month', closed) THEN back ELSE 0 END)
            WHERE n.id = ANY (hold.budget_path);
    END IF;
    IF back = uncorrected THEN  -- given back whole: the free part of it counts as unused
        PERFORM billing_move_allowance(hold.organization_id, hold.model_id,
            date_trunc('month', hold.created_at AT TIME ZONE 'UTC')::date, 0, 0,
            -least(hold.allowance_used_nano_usd, hold.monthly_allowance_nano_usd),
            -greatest(0, hold.allowance_used_nano_usd - hold.monthly_allowance_nano_usd))
            WHERE hold.allowance_used_nano_usd > 0;
    END IF;
    RETURN QUERY SELECT 'corrected', back;
END $$;

CREATE FUNCTION billing_check_bearer() RETURNS trigger LANGUAGE plpgsql AS $$
-- A correction that one bears takes from that one alone.
BEGIN
    IF EXISTS (
        SELECT 1 FROM billing_entry e JOIN billing_account a ON a.id = e.account_id
        WHERE e.transaction_id = NEW.transaction_id AND a.kind <> 'customer_credit'
            AND a.organization_id IS DISTINCT FROM NEW.bearer_organization_id
    ) THEN
        RAISE EXCEPTION 'correction % takes from others than who bears it', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_correction_borne';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER billing_correction_borne AFTER INSERT ON billing_correction
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.bearer <> 'all') EXECUTE FUNCTION billing_check_bearer();
