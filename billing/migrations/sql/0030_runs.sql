-- Runs: a budget, a count of calls and a deadline over many predictions. A run is one more node on the path of each of
-- its calls, so the hold that pays for a call is also the one that fits it into the run.

ALTER TYPE billing_hold_item ADD ATTRIBUTE run_id uuid;

CREATE FUNCTION billing_open_run(
    p_id uuid, p_organization uuid, p_api_key uuid, p_name text, p_metadata jsonb, p_limit bigint, p_max_calls integer,
    p_seconds integer, p_most_open integer
) RETURNS text LANGUAGE plpgsql AS $$
-- Makes a run that ends in p_seconds, for the key's line. Outcomes: opened; too_many, if p_most_open are open.
BEGIN
    PERFORM 1 FROM accounts_organization WHERE id = p_organization FOR NO KEY UPDATE;
    IF (SELECT count(*) FROM billing_run WHERE organization_id = p_organization AND closed_at IS NULL AND deadline > now())
            >= p_most_open THEN
        RETURN 'too_many';
    END IF;
    INSERT INTO billing_budgetnode (id, organization_id, kind, name, path, total_limit_nano_usd)
        VALUES (p_id, p_organization, 'run', p_name, ARRAY[p_id], p_limit);
    INSERT INTO billing_run (node_id, organization_id, key_line, metadata, max_calls, deadline)
        VALUES (p_id, p_organization, billing_key_line(p_api_key), p_metadata, p_max_calls,
            now() + make_interval(secs => p_seconds));
    RETURN 'opened';
END $$;

CREATE FUNCTION billing_call_path(p_item billing_hold_item) RETURNS uuid[] LANGUAGE sql AS $$
-- The nodes on which an item's spending counts: those of its key and end user, and its run.
    SELECT nullif(coalesce(billing_budget_path(p_item.organization_id, p_item.api_key_id, p_item.end_user), '{}')
        || ARRAY(SELECT node_id FROM billing_run
            WHERE node_id = p_item.run_id AND organization_id = p_item.organization_id), '{}')
$$;

CREATE FUNCTION billing_run_refusal(p_item billing_hold_item) RETURNS text LANGUAGE plpgsql AS $$
-- The outcome that refuses a call of a run, whose node is locked; null: it takes the call. A run is its key line's.
DECLARE
    run billing_run;
BEGIN
    SELECT * INTO run FROM billing_run WHERE node_id = p_item.run_id AND organization_id = p_item.organization_id
        AND key_line = billing_key_line(p_item.api_key_id);
    RETURN CASE
        WHEN run.node_id IS NULL THEN 'run_unknown'
        WHEN run.closed_at IS NOT NULL THEN 'run_closed'
        WHEN run.deadline <= clock_timestamp() THEN 'run_expired'
        WHEN run.calls >= run.max_calls THEN 'run_calls_exhausted' END;
END $$;

CREATE OR REPLACE FUNCTION billing_place_holds(p_items jsonb)
RETURNS TABLE (id uuid, outcome text, available bigint, amount bigint, max_tokens bigint,
               budget_node uuid, budget_period text, budget_limit bigint, budget_spent bigint,
               existing_id uuid, existing_state text, same_body boolean) LANGUAGE plpgsql AS $$
-- Places the first attempt of each item, or refuses it: one row per item, in their order. Outcomes: placed, insufficient,
-- budget, duplicate, and those of billing_run_refusal. An item whose on_budget is 'stop' gets the most completion tokens that wallet and budgets can pay.
#variable_conflict use_column
DECLARE
    items billing_hold_item[] := ARRAY(SELECT i FROM jsonb_populate_recordset(NULL::billing_hold_item, p_items) i);
    ids uuid[];  -- of the items, sorted
    known uuid[];  -- those of them that have a hold
    for_nothing boolean;  -- some may cost nothing
    repeated boolean;  -- this call has an id or a key twice
    item billing_hold_item;
    wallets bigint[];  -- accounts by id, and what each has that is not set aside
    rests bigint[];
    owners uuid[];
    paths text[];  -- of each item: the budget nodes, as text because arrays of arrays have one length
    w integer;
    path uuid[];
    room billing_budget_room;
    earlier billing_hold;
    twin integer;  -- an item of this call with the same id or key
    allowances bigint[];
    money bigint;
    now_month date := date_trunc('month', now() AT TIME ZONE 'UTC');
    placed_n integer[] := '{}';
    placed_amount bigint[] := '{}';
    placed_tokens bigint[] := '{}';
    placed_monthly bigint[] := '{}';
    placed_introductory bigint[] := '{}';
BEGIN
    SELECT array_agg(i.id ORDER BY i.id), array_agg(DISTINCT i.organization_id), count(DISTINCT i.id) < count(*)
            OR count(DISTINCT (i.organization_id, i.idempotency_key)) FILTER (WHERE i.idempotency_key IS NOT NULL)
                < count(i.idempotency_key),
        bool_or(i.amount = 0 OR coalesce(i.monthly_free, 0) + coalesce(i.introductory_free, 0) > 0)
        INTO ids, owners, repeated, for_nothing FROM unnest(items) i;
    IF for_nothing THEN
        -- A hold of nothing needs no credit, so it opens the wallet of a customer who never had any: free models are for all.
        INSERT INTO billing_account (kind, organization_id)
            SELECT DISTINCT 'customer_credit', i.organization_id FROM unnest(items) i
            WHERE (i.amount = 0 OR coalesce(i.monthly_free, 0) + coalesce(i.introductory_free, 0) > 0) AND NOT EXISTS (
                SELECT 1 FROM billing_account a WHERE a.kind = 'customer_credit' AND a.organization_id = i.organization_id)
            ON CONFLICT DO NOTHING;
    END IF;
    PERFORM billing_lock_wallets(owners);
    -- From here on all holds of these wallets wait for each other, so what is read below cannot change.
    SELECT array_agg(a.id), array_agg(a.posted - a.held), array_agg(a.organization_id), (
            SELECT array_agg(h.id) FROM billing_hold h WHERE h.id = ANY (ids))
        INTO wallets, rests, owners, known FROM billing_account a
        WHERE a.kind = 'customer_credit' AND a.organization_id = ANY (owners);
    IF EXISTS (SELECT 1 FROM billing_budgetnode n WHERE n.organization_id = ANY (owners)) THEN
        paths := ARRAY(SELECT CASE WHEN (items[n]).run_id IS NOT NULL THEN billing_call_path(items[n]) ELSE billing_budget_path(
                (items[n]).organization_id, (items[n]).api_key_id, (items[n]).end_user) END::text
            FROM generate_subscripts(items, 1) AS n ORDER BY n);
        PERFORM billing_lock_nodes(ARRAY(SELECT unnest(p::uuid[]) FROM unnest(paths) AS p));
    END IF;

    FOR n IN 1 .. coalesce(cardinality(items), 0) LOOP
        item := items[n];
        id := item.id;
        outcome := 'insufficient';
        available := 0::bigint;
        amount := item.amount;
        max_tokens := item.max_tokens;
        budget_node := NULL;
        budget_period := NULL;
        budget_limit := NULL;
        budget_spent := NULL;
        existing_id := NULL;
        existing_state := NULL;
        same_body := NULL;
        w := array_position(owners, item.organization_id);
        IF w IS NULL THEN
            RETURN NEXT;
            CONTINUE;
        END IF;

        twin := NULL;
        earlier := NULL;
        IF repeated THEN
            SELECT t INTO twin FROM unnest(placed_n) AS t WHERE (items[t]).id = item.id OR
                ((items[t]).organization_id, (items[t]).idempotency_key) = (item.organization_id, item.idempotency_key) LIMIT 1;
        END IF;
        IF item.idempotency_key IS NOT NULL OR item.id = ANY (known) THEN
            earlier := billing_earlier_hold(wallets[w], item);
        END IF;
        IF twin IS NOT NULL OR earlier.id IS NOT NULL THEN
            outcome := 'duplicate';
            existing_id := coalesce((items[twin]).id, earlier.id);
            max_tokens := coalesce(earlier.max_tokens, item.max_tokens);
            existing_state := CASE WHEN twin IS NULL THEN earlier.state ELSE 'open' END;
            same_body := CASE WHEN twin IS NULL THEN earlier.request_hash = decode(item.request_hash, 'hex')
                ELSE (items[twin]).request_hash = item.request_hash END;
            RETURN NEXT;
            CONTINUE;
        END IF;

        IF item.run_id IS NOT NULL THEN
            outcome := billing_run_refusal(item);
            IF outcome IS NOT NULL THEN
                RETURN NEXT;
                CONTINUE;
            END IF;
            outcome := 'insufficient';
        END IF;
        allowances := ARRAY[0, 0];
        IF coalesce(item.monthly_free, 0) + coalesce(item.introductory_free, 0) > 0 THEN
            allowances[1] := billing_free_rest(item, 'monthly', now_month, item.monthly_free, amount);
            allowances[2] := billing_free_rest(item, 'introductory', '1970-01-01', item.introductory_free, amount - allowances[1]);
        END IF;
        path := paths[n]::uuid[];
        room := NULL;
        IF path IS NOT NULL THEN
            room := billing_room_of(path);
        END IF;
        money := least(rests[w], room.room);
        IF money < amount - allowances[1] - allowances[2] THEN
            available := rests[w];
            IF rests[w] >= amount - allowances[1] - allowances[2] THEN
                outcome := 'budget';
                budget_node := room.node_id;
                budget_period := room.period;
                budget_limit := room.most;
                budget_spent := room.spent;
            END IF;
            max_tokens := CASE WHEN item.on_budget = 'stop'
                THEN billing_affordable_tokens(item, greatest(money, 0) + allowances[1] + allowances[2]) END;
            IF max_tokens IS NULL THEN
                max_tokens := item.max_tokens;
                RETURN NEXT;
                CONTINUE;
            END IF;
            amount := billing_gross_nano_usd(greatest(item.input, item.cached_input), 0, item.output, item.per_prediction,
                item.class_bps, item.max_prompt_tokens, 0, max_tokens);
            allowances[1] := least(allowances[1], amount);
            allowances[2] := least(allowances[2], amount - allowances[1]);
        END IF;

        outcome := 'placed';
        amount := amount - allowances[1] - allowances[2];
        rests[w] := rests[w] - amount;
        available := rests[w];
        IF allowances[1] + allowances[2] > 0 THEN
            PERFORM billing_move_allowance(item.organization_id, item.model_id, now_month, allowances[1], allowances[2], 0, 0);
        END IF;
        IF path IS NOT NULL THEN
            PERFORM billing_spend_in_budgets(jsonb_build_array(jsonb_build_object('path', path, 'held', amount, 'spent', 0)));
        END IF;
        IF item.run_id IS NOT NULL THEN
            UPDATE billing_run SET calls = calls + 1 WHERE node_id = item.run_id;
        END IF;
        placed_n := placed_n || n;
        placed_amount := placed_amount || amount;
        placed_tokens := placed_tokens || max_tokens;
        placed_monthly := placed_monthly || allowances[1];
        placed_introductory := placed_introductory || allowances[2];
        budget_node := NULL;
        budget_period := NULL;
        budget_limit := NULL;
        budget_spent := NULL;
        RETURN NEXT;
    END LOOP;

    INSERT INTO billing_hold (
        id, account_id, organization_id, api_key_id, amount_nano_usd, state, price_id, input_micro_usd_per_mtok,
        cached_input_micro_usd_per_mtok, output_micro_usd_per_mtok, per_prediction_nano_usd, latency_class, class_bps,
        monthly_allowance_nano_usd, introductory_allowance_nano_usd, split_id, model_name, model_id, version_id,
        creator_organization_id, idempotency_key, request_hash, replica_id, budget_path, run_id,
        expires_at, gateway_id, adapter,
        base, max_prompt_tokens, max_tokens
    ) SELECT i.id, wallets[array_position(owners, i.organization_id)], i.organization_id, i.api_key_id, p.amount, 'open',
        i.price_id, i.input, i.cached_input, i.output, i.per_prediction, i.latency_class, i.class_bps, p.monthly,
        p.introductory, i.split_id, i.model_name, i.model_id, i.version_id, i.creator_organization_id, i.idempotency_key,
        decode(i.request_hash, 'hex'), i.replica_id, coalesce(paths[p.n]::uuid[], '{}'), i.run_id, i.expires_at, i.gateway_id,
        i.adapter, i.base, i.max_prompt_tokens, p.tokens
    FROM unnest(placed_n, placed_amount, placed_tokens, placed_monthly, placed_introductory)
        AS p (n, amount, tokens, monthly, introductory)
    JOIN ROWS FROM (unnest(items)) WITH ORDINALITY AS i ON i.ordinality = p.n;
END $$;

CREATE OR REPLACE FUNCTION billing_guard_hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.state = 'open' THEN
            RAISE EXCEPTION 'hold % is open and cannot be deleted', OLD.id USING ERRCODE = 'check_violation';
        END IF;
        RETURN OLD;
    END IF;
    IF TG_OP = 'INSERT' THEN
        IF NEW.state <> 'open' OR NEW.attempt <> 1 OR NEW.delivered_tokens IS NOT NULL THEN
            RAISE EXCEPTION 'a hold starts open, at its first attempt and without a verdict'
                USING ERRCODE = 'check_violation';
        END IF;
        RETURN NEW;
    END IF;
    IF OLD.state <> 'open' THEN
        RAISE EXCEPTION 'hold % is closed', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF (NEW.id, NEW.account_id, NEW.organization_id, NEW.api_key_id, NEW.amount_nano_usd, NEW.price_id,
        NEW.input_micro_usd_per_mtok, NEW.cached_input_micro_usd_per_mtok, NEW.output_micro_usd_per_mtok,
        NEW.per_prediction_nano_usd, NEW.latency_class, NEW.class_bps, NEW.monthly_allowance_nano_usd,
        NEW.introductory_allowance_nano_usd, NEW.split_id, NEW.model_name, NEW.model_id, NEW.version_id,
        NEW.creator_organization_id, NEW.idempotency_key, NEW.request_hash, NEW.budget_path, NEW.run_id, NEW.created_at,
        NEW.gateway_id, NEW.adapter, NEW.base, NEW.max_prompt_tokens, NEW.max_tokens)
       IS DISTINCT FROM
       (OLD.id, OLD.account_id, OLD.organization_id, OLD.api_key_id, OLD.amount_nano_usd, OLD.price_id,
        OLD.input_micro_usd_per_mtok, OLD.cached_input_micro_usd_per_mtok, OLD.output_micro_usd_per_mtok,
        OLD.per_prediction_nano_usd, OLD.latency_class, OLD.class_bps, OLD.monthly_allowance_nano_usd,
        OLD.introductory_allowance_nano_usd, OLD.split_id, OLD.model_name, OLD.model_id, OLD.version_id,
        OLD.creator_organization_id, OLD.idempotency_key, OLD.request_hash, OLD.budget_path, OLD.run_id, OLD.created_at,
        OLD.gateway_id, OLD.adapter, OLD.base, OLD.max_prompt_tokens, OLD.max_tokens) THEN
        RAISE EXCEPTION 'the terms of hold % are fixed', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF (NEW.attempt, NEW.replica_id) IS DISTINCT FROM (OLD.attempt, OLD.replica_id)
       AND (NEW.attempt <> OLD.attempt + 1 OR NEW.state <> 'open' OR OLD.delivered_tokens IS NOT NULL
            OR NEW.delivered_tokens IS NOT NULL) THEN
        RAISE EXCEPTION 'hold % moves to another replica by its next attempt alone', OLD.id
            USING ERRCODE = 'check_violation';
    END IF;
    IF OLD.delivered_tokens IS NOT NULL AND (NEW.delivered_tokens, NEW.verdict_at) IS DISTINCT FROM
       (OLD.delivered_tokens, OLD.verdict_at) THEN
        RAISE EXCEPTION 'the verdict on hold % stands', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
