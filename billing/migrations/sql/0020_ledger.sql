-- The rules of entries, for whole statements: a batch of predictions touches each account, lot and rule once.

-- Shares ---------------------------------------------------------------------------------------------------------------

CREATE FUNCTION billing_shares_of(p_keys uuid[], p_splits bigint[], p_costs bigint[])
RETURNS TABLE (key uuid, place smallint, organization_id uuid, reason text, amount bigint) LANGUAGE sql STABLE AS $$
-- The shares of costs, one row per part that gets something; the platform has no organization. The same as
-- billing.pricing.shares: the payees' pool is rounded down and divided by largest remainder, the platform has the rest.
    WITH asked AS (
        SELECT * FROM unnest(p_keys, p_splits, p_costs) AS a (key, split_id, cost)
    ), payee AS (
        SELECT a.key, a.cost, p.place, p.organization_id, p.reason, p.basis_points,
            sum(p.basis_points) OVER (PARTITION BY a.key) AS payees_bps
        FROM asked a JOIN billing_splitpart p ON p.split_id = a.split_id
        WHERE p.organization_id IS NOT NULL AND p.basis_points > 0
    ), pooled AS (
        SELECT *, div(cost::numeric * payees_bps, 10000) AS pool FROM payee
    ), divided AS (
        SELECT *, div(pool * basis_points, payees_bps) AS base, mod(pool * basis_points, payees_bps) AS rest FROM pooled
    ), turned AS (
        SELECT *, row_number() OVER (PARTITION BY key ORDER BY rest DESC, place) AS turn,
            pool - sum(base) OVER (PARTITION BY key) AS left_over
        FROM divided
    ), paid AS (
        SELECT key, place, organization_id, reason, (base + CASE WHEN turn <= left_over THEN 1 ELSE 0 END)::bigint AS amount
        FROM turned
    )
    SELECT key, place, organization_id, reason::text, amount FROM paid WHERE amount > 0
    UNION ALL
    SELECT a.key, 0::smallint, NULL, 'platform', a.cost - coalesce(p.total, 0)::bigint
    FROM asked a LEFT JOIN (SELECT key, sum(amount) AS total FROM paid GROUP BY key) p ON p.key = a.key
    WHERE a.cost > coalesce(p.total, 0)
$$;

CREATE FUNCTION billing_shares(p_split bigint, p_cost bigint)
RETURNS TABLE (place smallint, organization_id uuid, reason text, amount bigint) LANGUAGE sql STABLE AS $$
-- The shares of one cost.
    SELECT s.place, s.organization_id, s.reason, s.amount
    FROM billing_shares_of(ARRAY['00000000-0000-0000-0000-000000000000'::uuid], ARRAY[p_split], ARRAY[p_cost]) s
    ORDER BY s.place = 0, s.place
$$;

CREATE FUNCTION billing_earned(p_split bigint, p_cost bigint, p_organization uuid) RETURNS bigint LANGUAGE sql STABLE AS $$
-- The parts of a cost that one payee gets.
    SELECT coalesce(sum(amount), 0)::bigint FROM billing_shares(p_split, p_cost) WHERE organization_id = p_organization
$$;

CREATE FUNCTION billing_charge_lines(p_ids uuid[]) RETURNS TABLE (hold_id uuid, account_id bigint, amount bigint)
LANGUAGE sql STABLE AS $$
-- The amounts that the charges of settled holds put on accounts, the customer's among them.
    WITH charged AS (
        SELECT h.id, h.account_id, h.split_id, h.cost_nano_usd FROM billing_hold h
        WHERE h.id = ANY (p_ids) AND h.state = 'settled' AND h.cost_nano_usd > 0
    ), share AS (
        SELECT s.key, s.organization_id, sum(s.amount) AS amount
        FROM (SELECT array_agg(id) AS ids, array_agg(split_id) AS splits, array_agg(cost_nano_usd) AS costs FROM charged) c,
            LATERAL billing_shares_of(c.ids, c.splits, c.costs) s
        GROUP BY s.key, s.organization_id
    )
    SELECT c.id, c.account_id, -c.cost_nano_usd FROM charged c
    UNION ALL
    SELECT share.key, a.id, share.amount::bigint FROM share LEFT JOIN billing_account a
        ON a.organization_id = share.organization_id AND a.kind = 'creator_reserve'
    WHERE share.organization_id IS NOT NULL
    UNION ALL
    SELECT share.key, a.id, share.amount::bigint FROM share LEFT JOIN billing_account a
        ON a.organization_id IS NULL AND a.kind = 'platform_revenue'
    WHERE share.organization_id IS NULL
$$;

-- Lots -----------------------------------------------------------------------------------------------------------------

CREATE FUNCTION billing_draw_lots(p_accounts bigint[], p_keys uuid[], p_amounts bigint[])
RETURNS TABLE (key uuid, account_id bigint, lot_id bigint, amount bigint) LANGUAGE sql STABLE AS $$
-- From which lots the amounts come, one after the other: promotional credit first, sooner expiry first, older first.
-- The accounts are locked by the caller. An account whose lots do not suffice gives less: the entries do not balance then.
    WITH want AS (
        SELECT w.account_id, w.key, w.amount, sum(w.amount) OVER (PARTITION BY w.account_id ORDER BY w.n) AS upto
        FROM unnest(p_accounts, p_keys, p_amounts) WITH ORDINALITY AS w (account_id, key, amount, n)
    ), have AS (
        SELECT l.account_id, l.id, l.remaining, sum(l.remaining) OVER (
            PARTITION BY l.account_id ORDER BY l.kind = 'paid', l.expires_at NULLS LAST, l.id) AS upto
        FROM billing_lot l WHERE l.account_id = ANY (p_accounts) AND l.remaining > 0
    )
    SELECT want.key, want.account_id, have.id,
        (least(want.upto, have.upto) - greatest(want.upto - want.amount, have.upto - have.remaining))::bigint
    FROM want JOIN have ON have.account_id = want.account_id
        AND have.upto > want.upto - want.amount AND have.upto - have.remaining < want.upto
$$;

CREATE FUNCTION billing_guard_lot() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'a lot is never deleted' USING ERRCODE = 'check_violation';
    ELSIF TG_OP = 'INSERT' THEN
        IF NEW.remaining <> 0 OR NEW.opening <> 0 THEN
            RAISE EXCEPTION 'a lot starts empty' USING ERRCODE = 'check_violation';
        END IF;
    ELSIF (NEW.id, NEW.account_id, NEW.kind, NEW.opening, NEW.expires_at, NEW.transaction_id, NEW.created_at)
        IS DISTINCT FROM
          (OLD.id, OLD.account_id, OLD.kind, OLD.opening, OLD.expires_at, OLD.transaction_id, OLD.created_at) THEN
        RAISE EXCEPTION 'the terms of a lot are fixed' USING ERRCODE = 'check_violation';
    ELSIF NEW.remaining <> OLD.remaining AND pg_trigger_depth() < 2 THEN
        RAISE EXCEPTION 'the rest of a lot changes through entries alone' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER billing_lot_guard BEFORE INSERT OR UPDATE OR DELETE ON billing_lot
    FOR EACH ROW EXECUTE FUNCTION billing_guard_lot();

CREATE FUNCTION billing_expire_lots(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
-- Takes what is left of expired promotional credit, but for what open holds have set aside. Returns how many lots it took
-- from; what is held is taken by a later call.
DECLARE
    due record;
    amount bigint;
    ledger_id bigint;
    taken integer := 0;
BEGIN
    FOR due IN
        SELECT l.id, l.account_id FROM billing_lot l JOIN billing_account a ON a.id = l.account_id
        WHERE l.remaining > 0 AND l.expires_at <= now() AND a.posted > a.held ORDER BY l.account_id, l.id LIMIT p_limit
    LOOP
        PERFORM 1 FROM billing_account WHERE id = due.account_id FOR NO KEY UPDATE;
        SELECT least(l.remaining, a.posted - a.held) INTO amount
            FROM billing_lot l JOIN billing_account a ON a.id = l.account_id WHERE l.id = due.id;
        CONTINUE WHEN amount <= 0;
        INSERT INTO billing_ledgertransaction (kind, reference, memo)
            VALUES ('expiry', due.id || ':' || gen_random_uuid(), 'promotional credit expired') RETURNING id INTO ledger_id;
        INSERT INTO billing_entry (transaction_id, account_id, lot_id, amount) VALUES
            (ledger_id, due.account_id, due.id, -amount),
            (ledger_id, billing_account_id('breakage', NULL), NULL, amount);
        taken := taken + 1;
    END LOOP;
    RETURN taken;
END $$;

-- Entries --------------------------------------------------------------------------------------------------------------

DROP TRIGGER billing_entry_posts ON billing_entry;
DROP TRIGGER billing_entry_joins_open_transaction ON billing_entry;
DROP TRIGGER billing_entry_statement_balanced ON billing_entry;
DROP FUNCTION billing_post_entry(), billing_check_entry(), billing_assert_balanced(bigint) CASCADE;
DROP FUNCTION billing_assert_prediction_entries(billing_ledgertransaction);

CREATE FUNCTION billing_post_added_entries() RETURNS trigger LANGUAGE plpgsql AS $$
-- Accounts in the order of locks, each once; a lot is changed under the lock of its account.
BEGIN
    PERFORM 1 FROM billing_account a JOIN billing_accountkind k ON k.code = a.kind
        WHERE a.id IN (SELECT account_id FROM added) ORDER BY k.rank, a.id FOR NO KEY UPDATE OF a;
    UPDATE billing_account a SET posted = a.posted + s.amount
        FROM (SELECT account_id, sum(amount) AS amount FROM added GROUP BY account_id) s WHERE a.id = s.account_id;
    UPDATE billing_lot l SET remaining = l.remaining + s.amount
        FROM (SELECT lot_id, sum(amount) AS amount FROM added WHERE lot_id IS NOT NULL GROUP BY lot_id) s
        WHERE l.id = s.lot_id;
    RETURN NULL;
END $$;
CREATE TRIGGER billing_entry_posts AFTER INSERT ON billing_entry REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION billing_post_added_entries();

CREATE FUNCTION billing_assert_charges(p_transactions bigint[]) RETURNS void LANGUAGE plpgsql AS $$
-- Raises unless the entries of each of these predictions are those of the settled hold that it names.
DECLARE
    wrong record;
BEGIN
    SELECT t.id, t.reference INTO wrong FROM billing_ledgertransaction t LEFT JOIN billing_hold h
        ON h.id = CASE WHEN pg_input_is_valid(t.reference, 'uuid') THEN t.reference::uuid END AND h.state = 'settled'
        WHERE t.id = ANY (p_transactions) AND h.id IS NULL LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'ledger transaction % names no settled prediction: %', wrong.id, wrong.reference
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_transaction_prediction_settled';
    END IF;
    WITH charged AS MATERIALIZED (
        SELECT id, reference::uuid AS hold_id FROM billing_ledgertransaction WHERE id = ANY (p_transactions)
    ), due AS (
        SELECT charged.id, line.account_id, line.amount
        FROM (SELECT array_agg(hold_id) AS ids FROM charged) c, LATERAL billing_charge_lines(c.ids) line
        JOIN charged ON charged.hold_id = line.hold_id
    ), booked AS (
        SELECT transaction_id AS id, account_id, sum(amount)::bigint AS amount
        FROM billing_entry WHERE transaction_id = ANY (p_transactions) GROUP BY 1, 2
    )
    SELECT coalesce(due.id, booked.id) AS id INTO wrong
        FROM due FULL JOIN booked ON (booked.id, booked.account_id) = (due.id, due.account_id)
        WHERE due.amount IS DISTINCT FROM booked.amount LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the entries of ledger transaction % are not those of prediction %', wrong.id,
            (SELECT reference FROM billing_ledgertransaction WHERE id = wrong.id)
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_transaction_prediction_exact';
    END IF;
END $$;

CREATE FUNCTION billing_assert_correction(p_transaction bigint, p_original bigint) RETURNS void LANGUAGE plpgsql AS $$
-- Raises unless all corrections of the original together take back at most what it moved: between the accounts of one
-- owner and family a correction may choose, because the money of a payee moves on.
DECLARE
    original billing_ledgertransaction;
BEGIN
    -- Corrections of one transaction take turns, whoever writes them.
    SELECT * INTO original FROM billing_ledgertransaction WHERE id = p_original FOR NO KEY UPDATE;
    IF original.corrects_id IS NOT NULL THEN
        RAISE EXCEPTION 'ledger transaction % corrects a correction', p_transaction
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_transaction_corrects_original';
    END IF;
    IF EXISTS (
        SELECT 1 FROM (
            SELECT a.organization_id, k.family,
                sum(e.amount) FILTER (WHERE e.transaction_id = original.id) AS moved,
                coalesce(sum(e.amount) FILTER (WHERE e.transaction_id <> original.id), 0) AS back
            FROM billing_entry e JOIN billing_account a ON a.id = e.account_id JOIN billing_accountkind k ON k.code = a.kind
            WHERE e.transaction_id = original.id
                OR e.transaction_id IN (SELECT id FROM billing_ledgertransaction WHERE corrects_id = original.id)
            GROUP BY a.organization_id, k.family
        ) side WHERE coalesce(sign(side.moved) * side.back > 0 OR abs(side.back) > abs(side.moved), side.back <> 0)
    ) THEN
        RAISE EXCEPTION 'correction % does not undo transaction % or a part of it', p_transaction, original.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_transaction_correction_within';
    END IF;
    IF original.kind = 'prediction'
       AND NOT EXISTS (SELECT 1 FROM billing_correction WHERE transaction_id = p_transaction) THEN
        RAISE EXCEPTION 'correction % of a prediction is not one of its corrections', p_transaction
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_transaction_correction_is_known';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION billing_check_added_entries() RETURNS trigger LANGUAGE plpgsql AS $$
-- After each statement, which nothing can defer or run early: all rules of the transactions that it added entries to.
DECLARE
    touched bigint[] := ARRAY(SELECT DISTINCT transaction_id FROM added);
    charges bigint[];
    wrong record;
BEGIN
    SELECT id INTO wrong FROM unnest(touched) AS touched (id) WHERE NOT EXISTS (
        SELECT 1 FROM billing_ledgertransaction t WHERE t.id = touched.id
            AND t.database_transaction = pg_current_xact_id()::text::bigint);
    IF FOUND THEN
        RAISE EXCEPTION 'ledger transaction % is closed or unknown', wrong.id
            USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'billing_transaction_closed';
    END IF;
    SELECT transaction_id AS id, sum(amount) AS total, count(*) AS lines INTO wrong
        FROM billing_entry WHERE transaction_id = ANY (touched)
        GROUP BY transaction_id HAVING sum(amount) <> 0 OR count(*) < 2 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'ledger transaction % has % entries that sum to %', wrong.id, wrong.lines, wrong.total
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_transaction_zero_sum';
    END IF;
    charges := ARRAY(SELECT id FROM billing_ledgertransaction WHERE id = ANY (touched) AND kind = 'prediction');
    IF cardinality(charges) > 0 THEN
        PERFORM billing_assert_charges(charges);
    END IF;
    PERFORM billing_assert_correction(id, corrects_id) FROM billing_ledgertransaction
        WHERE id = ANY (touched) AND corrects_id IS NOT NULL;
    SELECT e.account_id INTO wrong FROM added e JOIN billing_account a ON a.id = e.account_id
        LEFT JOIN billing_lot l ON l.id = e.lot_id
        WHERE (a.kind = 'customer_credit') <> (l.id IS NOT NULL) OR l.account_id <> e.account_id;
    IF FOUND THEN
        RAISE EXCEPTION 'an entry of account % names no lot of it', wrong.account_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_entry_names_its_lot';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER billing_entry_statement_balanced AFTER INSERT ON billing_entry REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION billing_check_added_entries();

-- When the database transaction commits: a ledger transaction without entries. (Those it has were checked as they came.)
CREATE OR REPLACE FUNCTION billing_check_zero_sum() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM billing_entry WHERE transaction_id = NEW.id) THEN
        RAISE EXCEPTION 'ledger transaction % has 0 entries that sum to 0', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_transaction_zero_sum';
    END IF;
    RETURN NULL;
END $$;

-- Holds post to their accounts ------------------------------------------------------------------------------------------

DROP TRIGGER billing_hold_posts ON billing_hold;
DROP FUNCTION billing_post_hold();
CREATE FUNCTION billing_post_placed_holds() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE billing_account a SET held = a.held + s.amount
        FROM (SELECT account_id, sum(amount_nano_usd) AS amount FROM placed GROUP BY account_id) s
        WHERE a.id = s.account_id;
    RETURN NULL;
END $$;
CREATE TRIGGER billing_hold_posts_placed AFTER INSERT ON billing_hold REFERENCING NEW TABLE AS placed
    FOR EACH STATEMENT EXECUTE FUNCTION billing_post_placed_holds();

CREATE FUNCTION billing_post_closed_holds() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE billing_account a SET held = a.held - s.amount
        FROM (SELECT now.account_id, sum(now.amount_nano_usd) AS amount FROM after now JOIN before b ON b.id = now.id
              WHERE b.state = 'open' AND now.state <> 'open' AND now.amount_nano_usd > 0 GROUP BY now.account_id) s
        WHERE a.id = s.account_id;
    RETURN NULL;
END $$;
CREATE TRIGGER billing_hold_posts_closed AFTER UPDATE ON billing_hold
    REFERENCING OLD TABLE AS before NEW TABLE AS after
    FOR EACH STATEMENT EXECUTE FUNCTION billing_post_closed_holds();

-- Corrections of predictions --------------------------------------------------------------------------------------------

CREATE FUNCTION billing_check_correction() RETURNS trigger LANGUAGE plpgsql AS $$
-- A correction is that of a settled hold; together they are its cost at most, and its transaction moves its amount.
DECLARE
    hold billing_hold;
BEGIN
    SELECT * INTO hold FROM billing_hold WHERE id = NEW.prediction_id AND state = 'settled' FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'correction of prediction %, which is not settled', NEW.prediction_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_correction_of_settled';
    END IF;
    IF (SELECT sum(amount_nano_usd) FROM billing_correction WHERE prediction_id = NEW.prediction_id) > hold.cost_nano_usd
       OR (NEW.amount_nano_usd = 0 AND hold.cost_nano_usd > 0) THEN
        RAISE EXCEPTION 'the corrections of prediction % exceed its cost', NEW.prediction_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_correction_within_cost';
    END IF;
    IF NEW.amount_nano_usd > 0 AND NEW.amount_nano_usd IS DISTINCT FROM (
        SELECT sum(e.amount) FROM billing_ledgertransaction t
        JOIN billing_ledgertransaction original ON original.id = t.corrects_id
        JOIN billing_entry e ON e.transaction_id = t.id AND e.account_id = hold.account_id
        WHERE t.id = NEW.transaction_id AND original.kind = 'prediction' AND original.reference = NEW.prediction_id::text
    ) THEN
        RAISE EXCEPTION 'correction of prediction % without the entries of its amount', NEW.prediction_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_correction_has_entries';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER billing_correction_corrects AFTER INSERT ON billing_correction
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_check_correction();
