"""The sums of the filled books, from usage and corrections in whole tables at once.

Adding 5 million predictions one day after the other takes the platform a quarter of an hour. What is written here is
what it would have written: `tests/billing/rollups/test_filled_books.py` compares the two.
"""

_CELLS = """
CREATE TEMPORARY TABLE cell AS
    SELECT organization_id, day, api_key_id AS key_line, model_id, version_id, latency_class,
        max(model_name) AS model_name, sum(predictions) AS predictions, sum(prompt_tokens) AS prompt_tokens,
        sum(cached_tokens) AS cached_tokens, sum(completion_tokens) AS completion_tokens, sum(charged) AS charged,
        sum(earned) AS earned
    FROM (
        SELECT organization_id, (created_at AT TIME ZONE 'UTC')::date AS day, api_key_id, model_id, version_id,
            latency_class, model_name, 1 AS predictions, prompt_tokens, cached_tokens, completion_tokens,
            cost_nano_usd AS charged, completion_tokens * 560 AS earned
        FROM billing_usage WHERE created_at < %(today)s
        UNION ALL
        SELECT u.organization_id, (u.created_at AT TIME ZONE 'UTC')::date, u.api_key_id, u.model_id, u.version_id,
            u.latency_class, u.model_name, 0, 0, 0, 0, -c.amount_nano_usd,
            CASE WHEN c.amount_nano_usd > 1 THEN -c.amount_nano_usd * 8 / 10 ELSE 0 END
        FROM billing_correction c JOIN billing_hold h ON h.id = c.prediction_id
        JOIN billing_usage u ON u.prediction_id = h.id AND u.created_at = h.closed_at
        WHERE h.closed_at < %(today)s
    ) movement
    GROUP BY organization_id, day, api_key_id, model_id, version_id, latency_class;
ANALYZE cell;
"""
_DAYS = """
INSERT INTO billing_usageday (organization_id, day, model_id, key_line, version_id, latency_class, model_name,
    predictions, prompt_tokens, cached_tokens, completion_tokens, charged_nano_usd)
SELECT organization_id, day, model_id, key_line, version_id, latency_class, model_name, predictions, prompt_tokens,
    cached_tokens, completion_tokens, charged
FROM cell ORDER BY organization_id, day, model_id;
INSERT INTO billing_earningsday (organization_id, day, reason, model_id, version_id, latency_class, model_name,
    predictions, prompt_tokens, cached_tokens, completion_tokens, charged_nano_usd, earned_nano_usd)
SELECT %(creator)s, day, 'creator', model_id, version_id, latency_class, max(model_name), sum(predictions),
    sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens), sum(charged), sum(earned)
FROM cell GROUP BY day, model_id, version_id, latency_class ORDER BY day, model_id;
"""
_SPANS = """
CREATE TEMPORARY TABLE span AS SELECT * FROM (VALUES (0), (1), (4), (16), (64)) AS lengths (days);
CREATE TEMPORARY TABLE nobody AS
    SELECT '00000000-0000-0000-0000-000000000000'::uuid AS id, '2000-01-01'::date AS first_day;
CREATE TEMPORARY TABLE line AS
    SELECT facet, organization_id, day, subject, max(label) AS label, sum(predictions) AS predictions,
        sum(prompt_tokens) AS prompt_tokens, sum(completion_tokens) AS completion_tokens, sum(charged) AS charged,
        sum(earned) AS earned
    FROM (
        SELECT facets.*, day, predictions, prompt_tokens, completion_tokens, charged,
            CASE WHEN facets.facet LIKE 'usage%%' THEN 0 ELSE earned END AS earned
        FROM cell CROSS JOIN nobody CROSS JOIN LATERAL (VALUES
            ('usage', cell.organization_id, nobody.id, ''),
            ('usage_model', cell.organization_id, cell.model_id, cell.model_name),
            ('usage_key', cell.organization_id, coalesce(cell.key_line, nobody.id), ''),
            ('platform', nobody.id, nobody.id, ''),
            ('earnings', %(creator)s, nobody.id, ''),
            ('earnings_model', %(creator)s, cell.model_id, cell.model_name)
        ) AS facets (facet, organization_id, subject, label)
    ) every GROUP BY facet, organization_id, day, subject;
INSERT INTO billing_spancustomer (organization_id, subject, span, start, customer_id)
    SELECT DISTINCT %(creator)s::uuid, seen.subject, span.days,
        CASE span.days WHEN 0 THEN first_day ELSE day - (day - first_day) %% span.days END, organization_id
    FROM cell CROSS JOIN nobody CROSS JOIN span
    CROSS JOIN LATERAL (VALUES (nobody.id), (cell.model_id)) AS seen (subject)
    WHERE predictions > 0 AND (seen.subject = nobody.id OR span.days = 0);
ANALYZE line; ANALYZE billing_spancustomer;
INSERT INTO billing_spantotal (facet, organization_id, span, start, subject, label, predictions, prompt_tokens,
    completion_tokens, charged_nano_usd, earned_nano_usd, customers)
SELECT facet, organization_id, days, start, subject, label, predictions, prompt_tokens, completion_tokens, charged,
    earned, CASE WHEN facet LIKE 'earnings%%' THEN coalesce(seen.customers, 0) ELSE 0 END
FROM (
    SELECT facet, organization_id, span.days, start.day AS start, subject, max(label) AS label,
        sum(predictions) AS predictions, sum(prompt_tokens) AS prompt_tokens,
        sum(completion_tokens) AS completion_tokens, sum(charged) AS charged, sum(earned) AS earned
    FROM line CROSS JOIN nobody CROSS JOIN span CROSS JOIN LATERAL (SELECT CASE span.days
        WHEN 0 THEN first_day ELSE line.day - (line.day - first_day) %% span.days END AS day) start
    GROUP BY facet, organization_id, span.days, start.day, subject
) totals LEFT JOIN (
    SELECT organization_id, subject, span AS days, start, count(*) AS customers
    FROM billing_spancustomer GROUP BY 1, 2, 3, 4
) seen USING (organization_id, subject, days, start)
ORDER BY facet, organization_id, days, start, subject;
DROP TABLE cell, line, span, nobody;
"""
SUMS = (_CELLS, _DAYS, _SPANS)
