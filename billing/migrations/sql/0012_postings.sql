-- Time in the books: each entry is posted once, with a number in the order in which entries became visible, and a month.
--
-- One database transaction at a time gives out numbers, and keeps the others waiting until it commits. A reader who has
-- seen number n therefore never sees a smaller one appear later: a balance at n, and a page after n, stay what they are.

CREATE FUNCTION billing_open_month(p_month date) RETURNS date LANGUAGE sql STABLE AS $$
    -- Late events belong to the first month that is still open.
    SELECT greatest(p_month, (SELECT (max(month) + interval '1 month')::date FROM billing_period));
$$;

CREATE FUNCTION billing_post_entries(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
-- Posts the entries of at most p_limit ledger transactions that have none yet, and returns how many entries it posted.
--
-- It looks from the oldest database transaction that still ran when an earlier call had posted everything: all before it
-- had ended then. Books restored into another server may have larger numbers than that server: all of them are looked at.
DECLARE
    mark billing_postingmark;
    ended bigint;
    found integer;
    posted integer;
BEGIN
    INSERT INTO billing_postingmark (id) VALUES (1) ON CONFLICT DO NOTHING;
    SELECT * INTO mark FROM billing_postingmark WHERE id = 1 FOR UPDATE;
    SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint INTO ended;
    IF mark.looked_from > ended THEN
        mark.looked_from := 0;
    END IF;
    WITH due AS MATERIALIZED (
        SELECT t.id, t.created_at, billing_open_month(date_trunc('month', t.created_at AT TIME ZONE 'UTC')::date) AS period
        FROM billing_ledgertransaction t
        WHERE t.database_transaction >= mark.looked_from
            AND NOT EXISTS (SELECT 1 FROM billing_posting p WHERE p.transaction_id = t.id)
        ORDER BY t.created_at, t.id LIMIT p_limit
    ), line AS MATERIALIZED (
        SELECT mark.sequence + row_number() OVER (ORDER BY due.created_at, due.id, e.id) AS sequence,
            due.id AS transaction_id, due.period, e.account_id, e.amount
        FROM due JOIN billing_entry e ON e.transaction_id = due.id
    ), before AS (
        SELECT account_id, coalesce((SELECT p.balance FROM billing_posting p WHERE p.account_id = a.account_id
            ORDER BY p.sequence DESC LIMIT 1), 0) AS balance
        FROM (SELECT DISTINCT account_id FROM line) a
    ), written AS (
        INSERT INTO billing_posting (sequence, transaction_id, account_id, amount, period, balance)
        SELECT line.sequence, line.transaction_id, line.account_id, line.amount, line.period,
            before.balance + sum(line.amount) OVER (PARTITION BY line.account_id ORDER BY line.sequence)
        FROM line JOIN before ON before.account_id = line.account_id RETURNING sequence
    )
    SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM written) INTO found, posted;
    UPDATE billing_postingmark SET sequence = mark.sequence + posted,
        looked_from = CASE WHEN found < p_limit THEN ended ELSE mark.looked_from END WHERE id = 1;
    IF posted > 0 THEN
        INSERT INTO billing_instant (sequence, reached_at) VALUES (mark.sequence + posted, clock_timestamp());
    END IF;
    RETURN posted;
END $$;

CREATE FUNCTION billing_close_month(p_month date, p_by text) RETURNS text LANGUAGE plpgsql AS $$
-- Closes the books of a month that is over; it never changes afterwards. Answers closed, not_a_month, not_over,
-- already_closed, earlier_open (an earlier month has postings and is open) or incident (one waits for a person).
DECLARE
    last_closed date;
BEGIN
    IF p_month <> date_trunc('month', p_month)::date THEN
        RETURN 'not_a_month';
    ELSIF p_month + interval '1 month' > now() AT TIME ZONE 'UTC' THEN
        RETURN 'not_over';
    END IF;
    -- Everything that is visible is posted first, and the lock that this takes is kept: no posting joins meanwhile.
    LOOP
        EXIT WHEN billing_post_entries(10000) = 0;
    END LOOP;
    SELECT max(month) INTO last_closed FROM billing_period;
    IF last_closed >= p_month THEN
        RETURN 'already_closed';
    ELSIF EXISTS (SELECT 1 FROM billing_incident WHERE resolved_at IS NULL) THEN
        RETURN 'incident';
    ELSIF EXISTS (SELECT 1 FROM billing_posting
                  WHERE period < p_month AND period > coalesce(last_closed, '-infinity')) THEN
        RETURN 'earlier_open';
    END IF;
    INSERT INTO billing_periodmovement (account_id, period, kind, amount, lines)
        SELECT p.account_id, p.period, t.kind, sum(p.amount), count(*)
        FROM billing_posting p JOIN billing_ledgertransaction t ON t.id = p.transaction_id
        WHERE p.period = p_month GROUP BY p.account_id, p.period, t.kind;
    INSERT INTO billing_periodbalance (account_id, period, opening, closing)
        SELECT a.id, p_month, a.opening, a.opening + coalesce(m.amount, 0)
        FROM (SELECT id, coalesce((SELECT b.closing FROM billing_periodbalance b WHERE b.account_id = account.id
                  AND b.period < p_month ORDER BY b.period DESC LIMIT 1), 0) AS opening
              FROM billing_account account) a
        LEFT JOIN (SELECT account_id, sum(amount) AS amount FROM billing_periodmovement WHERE period = p_month
                   GROUP BY account_id) m ON m.account_id = a.id
        WHERE a.opening <> 0 OR m.account_id IS NOT NULL;
    INSERT INTO billing_period (month, closed_by, last_sequence)
        SELECT p_month, p_by, sequence FROM billing_postingmark WHERE id = 1;
    RETURN 'closed';
END $$;

-- History: what was booked before is posted in the order of its time, and every minute of it is an instant.
DO $$ BEGIN
    LOOP
        EXIT WHEN billing_post_entries(100000) = 0;
    END LOOP;
END $$;
DELETE FROM billing_instant;
INSERT INTO billing_instant (sequence, reached_at)
    SELECT max(p.sequence), date_trunc('minute', t.created_at) + interval '1 minute'
    FROM billing_posting p JOIN billing_ledgertransaction t ON t.id = p.transaction_id
    GROUP BY date_trunc('minute', t.created_at);

-- Nothing of it changes, and nothing joins a closed month --------------------------------------------------------------

CREATE FUNCTION billing_refuse_closed_month() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM added JOIN billing_period closed ON closed.month >= added.period) THEN
        RAISE EXCEPTION 'the month of this posting is closed'
            USING ERRCODE = 'check_violation', CONSTRAINT = 'billing_posting_month_open';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER billing_posting_month_open AFTER INSERT ON billing_posting REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_closed_month();

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['posting', 'instant', 'period', 'periodbalance', 'periodmovement'] LOOP
        EXECUTE format('CREATE TRIGGER %I BEFORE UPDATE OR DELETE ON %I FOR EACH ROW EXECUTE FUNCTION billing_refuse_change()',
            'billing_' || name || '_append_only', 'billing_' || name);
        EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()',
            'billing_' || name || '_no_truncate', 'billing_' || name);
    END LOOP;
END $$;
