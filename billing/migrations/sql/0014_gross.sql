CREATE FUNCTION billing_gross_nano_usd(
    p_input bigint, p_cached_input bigint, p_output bigint, p_per_prediction bigint, p_class_bps integer,
    p_prompt_tokens bigint, p_cached_tokens bigint, p_completion_tokens bigint
) RETURNS numeric LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
-- The same as billing.pricing.cost_nano_usd without an allowance: tokens and the flat price are summed in
-- pico-dollars, multiplied by the latency class (10,000 is 1 x), and rounded up to nano-dollars once.
    SELECT div(
        ((p_prompt_tokens - p_cached_tokens)::numeric * p_input + p_cached_tokens::numeric * p_cached_input
            + p_completion_tokens::numeric * p_output + p_per_prediction::numeric * 1000) * p_class_bps + 9999999,
        10000000)
$$;
