"""The measured time to the first token of each listed model, written beside its standing.

It comes from blocks alone (`blocks`), as everything that is shown of a model in use.
"""

from __future__ import annotations

from collections import defaultdict
from uuid import UUID

from django.db import connection, transaction

from marketplace.catalog.rollouts import DEFAULT_FIRST_SQL
from marketplace.watch.sums import BUCKETS, quantile

DAYS = 28
SHARE = 0.95
LEAST_CALLS = 100  # of fewer, the slowest twentieth is a handful

_READ = f"""
SELECT t.model_id, bucket.number, sum(bucket.calls)::bigint FROM catalog_standing t
JOIN catalog_model m ON m.id = t.model_id
CROSS JOIN LATERAL (SELECT v.id FROM catalog_version v
    WHERE v.model_id = t.model_id AND v.state = 'published' ORDER BY {DEFAULT_FIRST_SQL} LIMIT 1) n
JOIN watch_block b ON b.version_id = n.id AND b."end" > now() - make_interval(days => %s)
CROSS JOIN LATERAL unnest(b.ttft) WITH ORDINALITY AS bucket (calls, number)
WHERE bucket.calls > 0 GROUP BY t.model_id, bucket.number
"""
_WRITE = """
UPDATE catalog_standing t SET ttft_p95_ms = new.ms
FROM catalog_standing old LEFT JOIN unnest(%s::uuid[], %s::integer[]) AS new (model_id, ms) USING (model_id)
WHERE t.model_id = old.model_id AND t.ttft_p95_ms IS DISTINCT FROM new.ms
"""


@transaction.atomic
def note_latency() -> int:
    """Write the 95th percentile (ms) of four weeks, null where too little is known; return how many rows changed."""
    histograms: dict[UUID, list[int]] = defaultdict(lambda: [0] * BUCKETS)
    with connection.cursor() as cursor:
        cursor.execute(_READ, [DAYS])
        for model_id, number, calls in cursor.fetchall():
            histograms[model_id][number - 1] = calls
        known = {model_id: found for model_id, found in histograms.items() if sum(found) >= LEAST_CALLS}
        slow = [round(quantile(found, SHARE) or 0) for found in known.values()]
        cursor.execute(_WRITE, [list(known), slow])
        return cursor.rowcount
