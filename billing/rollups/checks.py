"""The comparison of sums with usage, corrections and ledger entries."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import connection

# One statement, so that all figures come from the same snapshot. What waits in the queue is in no sum yet; months whose
# usage was dropped are not compared, since their sums are all that is left.
_CHECK = """
WITH counted AS MATERIALIZED (
    SELECT u.prediction_id, u.created_at, u.organization_id, (u.created_at AT TIME ZONE 'UTC')::date AS day,
        u.model_id, u.cost_nano_usd AS charged
    FROM billing_usage u WHERE NOT EXISTS (SELECT 1 FROM billing_rollupqueue q
        WHERE q.prediction_id = u.prediction_id AND q.correction_id IS NULL)
), given_back AS MATERIALIZED (
    SELECT h.organization_id, (h.closed_at AT TIME ZONE 'UTC')::date AS day, h.model_id,
        c.amount_nano_usd AS amount, c.transaction_id
    FROM billing_correction c JOIN billing_hold h ON h.id = c.prediction_id
    WHERE NOT EXISTS (SELECT 1 FROM billing_rollupqueue q
        WHERE q.prediction_id = c.prediction_id AND q.correction_id = c.id)
), used AS (
    SELECT organization_id, day, model_id, sum(predictions) AS predictions, sum(charged) AS charged FROM (
        SELECT organization_id, day, model_id, count(*) AS predictions, sum(charged) AS charged
        FROM counted GROUP BY 1, 2, 3
        UNION ALL
        SELECT organization_id, day, model_id, 0, -sum(amount) FROM given_back GROUP BY 1, 2, 3
    ) lines GROUP BY 1, 2, 3
), usage_sums AS (
    SELECT organization_id, day, model_id, sum(predictions) AS predictions, sum(charged_nano_usd) AS charged
    FROM billing_usageday GROUP BY 1, 2, 3
), earned AS (
    SELECT a.organization_id, lines.day, sum(e.amount) AS amount
    FROM (
        SELECT t.id, counted.day FROM counted
        JOIN billing_ledgertransaction t ON t.kind = 'prediction' AND t.reference = counted.prediction_id::text
        UNION ALL
        SELECT transaction_id, day FROM given_back WHERE transaction_id IS NOT NULL
    ) lines
    JOIN billing_entry e ON e.transaction_id = lines.id
    JOIN billing_account a ON a.id = e.account_id
    JOIN billing_accountkind k ON k.code = a.kind AND k.family = 'creator'
    GROUP BY 1, 2
), earnings_sums AS (
    SELECT organization_id, day, sum(earned_nano_usd) AS amount FROM billing_earningsday GROUP BY 1, 2
), cells AS (
    SELECT 'usage' AS facet, organization_id, day, '00000000-0000-0000-0000-000000000000'::uuid AS subject,
        sum(predictions) AS predictions, sum(charged_nano_usd) AS amount FROM billing_usageday GROUP BY 2, 3
    UNION ALL
    SELECT 'usage_model', organization_id, day, model_id, sum(predictions), sum(charged_nano_usd)
        FROM billing_usageday GROUP BY 2, 3, 4
    UNION ALL
    SELECT 'usage_key', organization_id, day, coalesce(key_line, '00000000-0000-0000-0000-000000000000'),
        sum(predictions), sum(charged_nano_usd) FROM billing_usageday GROUP BY 2, 3, key_line
    UNION ALL
    SELECT 'earnings', organization_id, day, '00000000-0000-0000-0000-000000000000', sum(predictions),
        sum(earned_nano_usd) FROM billing_earningsday GROUP BY 2, 3
    UNION ALL
    SELECT 'earnings_model', organization_id, day, model_id, sum(predictions), sum(earned_nano_usd)
        FROM billing_earningsday GROUP BY 2, 3, 4
), expected AS (
    SELECT facet, organization_id, span.days AS span, CASE span.days WHEN 0 THEN date '2000-01-01'
            ELSE day - (day - date '2000-01-01') % span.days END AS start, subject, sum(predictions) AS predictions,
        sum(amount) AS amount
    FROM cells CROSS JOIN (VALUES (0), (1), (4), (16), (64)) AS span (days) GROUP BY 1, 2, 3, 4, 5
)
(SELECT 'usage ' || organization_id, 'usage of ' || day || ' is the sum of its predictions',
    coalesce(s.charged, 0)::bigint, coalesce(u.charged, 0)::bigint
FROM used u FULL JOIN usage_sums s USING (organization_id, day, model_id)
WHERE (u.predictions, u.charged) IS DISTINCT FROM (s.predictions, s.charged)
    AND date_trunc('month', day)::date NOT IN (SELECT month FROM billing_droppedusage)
LIMIT 50)
UNION ALL
(SELECT 'earnings ' || organization_id, 'earnings of ' || day || ' are the sum of their entries',
    coalesce(s.amount, 0)::bigint, coalesce(e.amount, 0)::bigint
FROM earned e FULL JOIN earnings_sums s USING (organization_id, day)
WHERE coalesce(e.amount, 0) <> coalesce(s.amount, 0)
    AND date_trunc('month', day)::date NOT IN (SELECT month FROM billing_droppedusage)
LIMIT 50)
UNION ALL
(SELECT facet || ' ' || organization_id,
    span || ' days from ' || start || ' are the sum of their days', coalesce(t.amount, 0)::bigint,
    coalesce(x.amount, 0)::bigint
FROM expected x FULL JOIN (
    SELECT facet, organization_id, span, start, subject, predictions,
        CASE WHEN facet LIKE 'earnings%' THEN earned_nano_usd ELSE charged_nano_usd END AS amount
    FROM billing_spantotal WHERE facet <> 'platform'
) t USING (facet, organization_id, span, start, subject)
WHERE (x.predictions, x.amount) IS DISTINCT FROM (t.predictions, t.amount)
LIMIT 50)
UNION ALL
(SELECT 'platform', 'the platform''s totals are those of its organizations',
    coalesce((SELECT charged_nano_usd - earned_nano_usd FROM billing_spantotal WHERE facet = 'platform' AND span = 0),
        0)::bigint, coalesce(x.amount, 0)::bigint
FROM (SELECT sum(CASE facet WHEN 'usage' THEN amount ELSE -amount END) AS amount FROM expected
    WHERE facet IN ('usage', 'earnings') AND span = 0) x
WHERE coalesce((SELECT charged_nano_usd - earned_nano_usd FROM billing_spantotal
    WHERE facet = 'platform' AND span = 0), 0) <> coalesce(x.amount, 0))
UNION ALL
(SELECT facet || ' ' || t.organization_id, 'customers are counted once', t.customers,
    count(c.customer_id)
FROM billing_spantotal t LEFT JOIN billing_spancustomer c ON c.organization_id = t.organization_id
    AND c.subject = t.subject AND c.span = t.span AND c.start = t.start
WHERE facet = 'earnings' OR (facet = 'earnings_model' AND t.span = 0)
GROUP BY facet, t.organization_id, t.span, t.start, t.subject, t.customers HAVING t.customers <> count(c.customer_id)
LIMIT 50)
"""


@dataclass(frozen=True, slots=True)
class WrongSum:
    """A sum in nano-dollars that is not what it must be; `rule` says why it must."""

    subject: str
    rule: str
    found: int
    expected: int


def find_wrong_sums() -> list[WrongSum]:
    """Return the sums of usage and earnings that are not those of what they sum up; none when all are right."""
    with connection.cursor() as cursor:
        cursor.execute(_CHECK)
        return [WrongSum(*row) for row in cursor.fetchall()]
