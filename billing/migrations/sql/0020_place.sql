-- Placing holds, many in one statement. Locks: wallets by id, allowances, budget nodes from roots to leaves.

DROP FUNCTION billing_place_hold(uuid, uuid, uuid, bigint, bigint, bigint, bigint, bigint, integer, text, uuid, uuid,
    uuid, text, bytea, uuid, timestamptz, uuid, text, text, bigint, bigint);
DROP FUNCTION billing_close_in_budget(uuid, bigint, bigint);

CREATE TYPE billing_hold_item AS (
    id uuid, organization_id uuid, api_key_id uuid, end_user text, on_budget text, amount bigint,
    input bigint, cached_input bigint, output bigint, per_prediction bigint, class_bps integer, latency_class text,
    price_id bigint, monthly_free bigint, introductory_free bigint, split_id bigint,
    model_name text, model_id uuid, version_id uuid, creator_organization_id uuid,
    idempotency_key text, request_hash text, replica_id uuid, expires_at timestamptz, gateway_id uuid,
    adapter text, base text, max_prompt_tokens bigint, max_tokens bigint
);
CREATE TYPE billing_budget_room AS (room bigint, node_id uuid, period text, most bigint, spent bigint);

CREATE FUNCTION billing_budget_path(p_organization uuid, p_api_key uuid, p_end_user text) RETURNS uuid[]
LANGUAGE plpgsql AS $$
-- The nodes on which this key's spending counts, root first; of the organization alone if the key has no node of its own.
-- An end user gets a node of its own once a node above limits end users.
DECLARE
    leaf billing_budgetnode;
    user_path uuid[];
    new_id uuid := gen_random_uuid();
BEGIN
    SELECT * INTO leaf FROM billing_budgetnode WHERE api_key_id = billing_key_line(p_api_key);
    IF NOT FOUND THEN
        SELECT * INTO leaf FROM billing_budgetnode WHERE organization_id = p_organization AND kind = 'organization';
    END IF;
    IF p_end_user IS NULL OR leaf.id IS NULL OR NOT EXISTS (
        SELECT 1 FROM billing_budgetnode WHERE id = ANY (leaf.path) AND coalesce(
            end_user_per_request_limit_nano_usd, end_user_daily_limit_nano_usd, end_user_monthly_limit_nano_usd,
            end_user_total_limit_nano_usd) IS NOT NULL
    ) THEN
        RETURN leaf.path;
    END IF;
    INSERT INTO billing_budgetnode (id, organization_id, parent_id, kind, end_user, path)
        VALUES (new_id, p_organization, leaf.id, 'end_user', p_end_user, leaf.path || new_id)
        ON CONFLICT (parent_id, end_user) WHERE kind = 'end_user' DO NOTHING;
    SELECT path INTO user_path FROM billing_budgetnode
        WHERE parent_id = leaf.id AND end_user = p_end_user AND kind = 'end_user';
    RETURN user_path;
END $$;

CREATE FUNCTION billing_room_of(p_path uuid[]) RETURNS billing_budget_room LANGUAGE plpgsql AS $$
-- The least that a limit on the path leaves, and which limit that is; all null without limits. The nodes are locked.
DECLARE
    least_room billing_budget_room;
    today date := (now() AT TIME ZONE 'UTC')::date;
BEGIN
    SELECT side.most - side.spent, side.id, side.period, side.most, side.spent INTO least_room FROM (
        SELECT n.id, line.period, line.most, line.spent
        FROM billing_budgetnode n
        LEFT JOIN LATERAL (  -- of the nearest node above that limits end users
            SELECT up.end_user_per_request_limit_nano_usd AS per_request, up.end_user_daily_limit_nano_usd AS daily,
                up.end_user_monthly_limit_nano_usd AS monthly, up.end_user_total_limit_nano_usd AS total
            FROM billing_budgetnode up WHERE n.kind = 'end_user' AND up.id = ANY (n.path) AND coalesce(
                up.end_user_per_request_limit_nano_usd, up.end_user_daily_limit_nano_usd,
                up.end_user_monthly_limit_nano_usd, up.end_user_total_limit_nano_usd) IS NOT NULL
            ORDER BY cardinality(up.path) DESC LIMIT 1
        ) above ON true
        CROSS JOIN LATERAL (VALUES
            ('request', coalesce(n.per_request_limit_nano_usd, above.per_request), 0::bigint),
            ('day', coalesce(n.daily_limit_nano_usd, above.daily), n.held_nano_usd
                + CASE WHEN n.day < today THEN 0 ELSE n.spent_today_nano_usd END),
            ('month', coalesce(n.monthly_limit_nano_usd, above.monthly), n.held_nano_usd
                + CASE WHEN n.month < date_trunc('month', today) THEN 0 ELSE n.spent_this_month_nano_usd END),
            ('total', coalesce(n.total_limit_nano_usd, above.total), n.held_nano_usd + n.spent_total_nano_usd)
        ) AS line (period, most, spent)
        WHERE n.id = ANY (p_path) AND line.most IS NOT NULL
    ) side ORDER BY side.most - side.spent LIMIT 1;
    RETURN least_room;
END $$;

CREATE FUNCTION billing_spend_in_budgets(p_paths jsonb) RETURNS void LANGUAGE plpgsql AS $$
-- Moves the counters of locked nodes: elements have path, held and spent, which are added. Spending counts in the day and
-- month of now.
DECLARE
    today date := (now() AT TIME ZONE 'UTC')::date;
BEGIN
    UPDATE billing_budgetnode n SET
        held_nano_usd = n.held_nano_usd + s.held,
        spent_total_nano_usd = n.spent_total_nano_usd + s.spent,
        spent_today_nano_usd = s.spent + CASE WHEN n.day < today THEN 0 ELSE n.spent_today_nano_usd END,
        spent_this_month_nano_usd = s.spent
            + CASE WHEN n.month < date_trunc('month', today) THEN 0 ELSE n.spent_this_month_nano_usd END,
        day = greatest(n.day, today), month = greatest(n.month, date_trunc('month', today)::date)
        FROM (SELECT node.id, sum(item.held) AS held, sum(item.spent) AS spent
              FROM jsonb_to_recordset(p_paths) AS item (path uuid[], held bigint, spent bigint), unnest(item.path) AS node (id)
              GROUP BY node.id) s
        WHERE n.id = s.id;
END $$;

CREATE FUNCTION billing_affordable_tokens(p_item billing_hold_item, p_money bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
-- The most completion tokens with which the item's worst case costs p_money at most; null if that is none, or if output
-- costs nothing. The inverse of billing_gross_nano_usd.
    SELECT CASE WHEN p_item.output > 0 THEN nullif(least(p_item.max_tokens, greatest(0, div(
        div(p_money::numeric * 10000000, greatest(p_item.class_bps, 1)) - p_item.per_prediction::numeric * 1000
            - p_item.max_prompt_tokens::numeric * greatest(p_item.input, p_item.cached_input), p_item.output))), 0) END::bigint
$$;

CREATE FUNCTION billing_free_rest(p_item billing_hold_item, p_kind text, p_month date, p_free bigint, p_wanted bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
-- The rest of the free allowance of this listing for this customer, at most p_wanted. Holds of one wallet take turns.
DECLARE
    used bigint;
BEGIN
    IF coalesce(p_free, 0) <= 0 OR p_wanted <= 0 THEN
        RETURN 0;
    END IF;
    INSERT INTO billing_allowance (organization_id, model_id, kind, month)
        VALUES (p_item.organization_id, p_item.model_id, p_kind, p_month) ON CONFLICT DO NOTHING;
    SELECT used_nano_usd + held_nano_usd INTO used FROM billing_allowance
        WHERE (organization_id, model_id, kind, month) = (p_item.organization_id, p_item.model_id, p_kind, p_month)
        FOR NO KEY UPDATE;
    RETURN greatest(0, least(p_wanted, p_free - used));
END $$;

CREATE FUNCTION billing_move_allowance(
    p_organization uuid, p_model uuid, p_month date, p_monthly_held bigint, p_introductory_held bigint,
    p_monthly_used bigint, p_introductory_used bigint
) RETURNS void LANGUAGE sql AS $$
-- Adds to the counters of one customer and listing.
    UPDATE billing_allowance SET
        held_nano_usd = held_nano_usd + CASE kind WHEN 'monthly' THEN p_monthly_held ELSE p_introductory_held END,
        used_nano_usd = used_nano_usd + CASE kind WHEN 'monthly' THEN p_monthly_used ELSE p_introductory_used END
        WHERE organization_id = p_organization AND model_id = p_model
            AND (kind, month) IN (('monthly', p_month), ('introductory', '1970-01-01'))
$$;

CREATE FUNCTION billing_lock_wallets(p_organizations uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM billing_account WHERE kind = 'customer_credit' AND organization_id = ANY (p_organizations)
        ORDER BY id FOR NO KEY UPDATE;
END $$;

CREATE FUNCTION billing_lock_nodes(p_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM billing_budgetnode WHERE id = ANY (p_ids) ORDER BY cardinality(path), id FOR NO KEY UPDATE;
END $$;

CREATE FUNCTION billing_earlier_hold(p_account bigint, p_item billing_hold_item) RETURNS billing_hold LANGUAGE plpgsql AS $$
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

CREATE FUNCTION billing_place_holds(p_items jsonb)
RETURNS TABLE (id uuid, outcome text, available bigint, amount bigint, max_tokens bigint,
               budget_node uuid, budget_period text, budget_limit bigint, budget_spent bigint,
               existing_id uuid, existing_state text, same_body boolean) LANGUAGE plpgsql AS $$
-- Places the first attempt of each item, or refuses it: one row per item, in their order. Outcomes: placed, insufficient,
-- budget, duplicate. An item whose on_budget is 'stop' gets the most completion tokens that wallet and budgets can pay.
#variable_conflict use_column
DECLARE
    items billing_hold_item[] := ARRAY(SELECT i FROM jsonb_populate_recordset(NULL::billing_hold_item, p_items) i);
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
    -- A hold of nothing needs no credit, so it opens the wallet of a customer who never had any: free models are for all.
    INSERT INTO billing_account (kind, organization_id)
        SELECT DISTINCT 'customer_credit', i.organization_id FROM unnest(items) i
        WHERE (i.amount = 0 OR coalesce(i.monthly_free, 0) + coalesce(i.introductory_free, 0) > 0) AND NOT EXISTS (
            SELECT 1 FROM billing_account a WHERE a.kind = 'customer_credit' AND a.organization_id = i.organization_id)
        ON CONFLICT DO NOTHING;
    PERFORM billing_lock_wallets(ARRAY(SELECT i.organization_id FROM unnest(items) i));
    -- From here on all holds of these wallets wait for each other, so what is read below cannot change.
    SELECT array_agg(a.id ORDER BY a.id), array_agg(a.posted - a.held ORDER BY a.id), array_agg(a.organization_id ORDER BY a.id)
        INTO wallets, rests, owners FROM billing_account a
        WHERE a.kind = 'customer_credit' AND a.organization_id IN (SELECT i.organization_id FROM unnest(items) i);
    IF EXISTS (SELECT 1 FROM billing_budgetnode n WHERE n.organization_id = ANY (owners)) THEN
        paths := ARRAY(SELECT billing_budget_path((items[n]).organization_id, (items[n]).api_key_id, (items[n]).end_user)::text
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

        SELECT t INTO twin FROM unnest(placed_n) AS t WHERE (items[t]).id = item.id
            OR ((items[t]).organization_id, (items[t]).idempotency_key) = (item.organization_id, item.idempotency_key) LIMIT 1;
        earlier := billing_earlier_hold(wallets[w], item);
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
        creator_organization_id, idempotency_key, request_hash, replica_id, budget_path, expires_at, gateway_id, adapter,
        base, max_prompt_tokens, max_tokens
    ) SELECT i.id, wallets[array_position(owners, i.organization_id)], i.organization_id, i.api_key_id, p.amount, 'open',
        i.price_id, i.input, i.cached_input, i.output, i.per_prediction, i.latency_class, i.class_bps, p.monthly,
        p.introductory, i.split_id, i.model_name, i.model_id, i.version_id, i.creator_organization_id, i.idempotency_key,
        decode(i.request_hash, 'hex'), i.replica_id, coalesce(paths[p.n]::uuid[], '{}'), i.expires_at, i.gateway_id,
        i.adapter, i.base, i.max_prompt_tokens, p.tokens
    FROM unnest(placed_n, placed_amount, placed_tokens, placed_monthly, placed_introductory)
        AS p (n, amount, tokens, monthly, introductory), LATERAL (SELECT (items[p.n]).*) i;
END $$;
