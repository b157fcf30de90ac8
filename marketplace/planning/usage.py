"""The usage file that plans of the fleet are made from: demand, shapes, popularity and money by base line.

Nothing in it leads back to an organization, a model or a text: versions are counts without names, shapes are token
counts rounded to `_ROUND`, hours are sums.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from protocol.receipts import ReceiptRejected, claims_of

FORMAT = 1
WEEKS = 13
_SHAPES = 2_000  # of each class, in a sample
_ROUND = 16  # tokens
_RANK = 16  # of an adapter whose report says none
_RECENT = timedelta(days=7)
_MONTH = timedelta(days=28)
_STATEMENT_SECONDS = 60

_HOURS = """
SELECT l.id::text, d.latency_class, d.hour, sum(d.served)::bigint, sum(d.refused)::bigint
FROM watch_demand d JOIN catalog_version v ON v.id = d.version_id JOIN catalog_model m ON m.id = v.model_id
    JOIN catalog_basemodel b ON b.id = m.base_model_id JOIN catalog_baseline l ON l.id = b.line_id
WHERE d.hour >= %s AND d.hour < %s GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
_LINES = """
SELECT l.id::text, l.name, b.fingerprint FROM catalog_baseline l
    JOIN catalog_basemodel b ON b.line_id = l.id AND b.is_reference ORDER BY l.name
"""
_POPULARITY = """
SELECT l.id::text, v.package_digest IS NULL, v.report ->> 'rank', sum(d.served + d.refused)::bigint
FROM watch_demand d JOIN catalog_version v ON v.id = d.version_id JOIN catalog_model m ON m.id = v.model_id
    JOIN catalog_basemodel b ON b.id = m.base_model_id JOIN catalog_baseline l ON l.id = b.line_id
WHERE d.hour >= %s GROUP BY v.id, 1, 2, 3 ORDER BY 4 DESC, 3
"""
# Each recent prediction with the same chance, and neither who asked nor for what.
_SHAPES_SQL = """
SELECT l.id::text, u.latency_class, (u.prompt_tokens / %(round)s) * %(round)s + 1, u.cached_tokens,
    greatest(u.completion_tokens, 1), u.prompt_tokens, u.receipt
FROM billing_usage u JOIN catalog_model m ON m.id = u.model_id
    JOIN catalog_basemodel b ON b.id = m.base_model_id JOIN catalog_baseline l ON l.id = b.line_id
WHERE u.created_at >= %(since)s AND random() < %(chance)s ORDER BY md5(u.prediction_id::text) LIMIT 20000
"""
# The spread of gaps between arrivals within the hours of a day: var / mean², 1 for a Poisson process.
_GAPS = """
SELECT line, latency_class, percentile_cont(0.5) WITHIN GROUP (ORDER BY spread) FROM (
    SELECT line, latency_class, hour, var_pop(gap) / nullif(avg(gap) ^ 2, 0) AS spread FROM (
        SELECT l.id::text AS line, h.latency_class, date_trunc('hour', h.created_at) AS hour,
            extract(epoch FROM h.created_at - lag(h.created_at) OVER (
                PARTITION BY l.id, h.latency_class, date_trunc('hour', h.created_at) ORDER BY h.created_at
            )) AS gap
        FROM billing_hold h JOIN catalog_model m ON m.id = h.model_id
            JOIN catalog_basemodel b ON b.id = m.base_model_id JOIN catalog_baseline l ON l.id = b.line_id
        WHERE h.created_at >= %s
    ) gaps GROUP BY 1, 2, 3 HAVING count(gap) >= 30
) hours GROUP BY 1, 2
"""
_MONEY = """
SELECT l.id::text, sum(u.cost_nano_usd)::bigint FROM billing_usage u JOIN catalog_model m ON m.id = u.model_id
    JOIN catalog_basemodel b ON b.id = m.base_model_id JOIN catalog_baseline l ON l.id = b.line_id
WHERE u.created_at >= %s GROUP BY 1
"""


def usage_file(now: datetime | None = None, *, with_this_hour: bool = False) -> dict[str, Any]:
    """Return what the usage file holds: whole hours before `now`, in one snapshot of the database.

    with_this_hour: as if it was over

    bases: by the reference's fingerprint. classes: calls by hour, served and refused. shapes: [prompt, cached,
    completion] tokens of a sample; times: what receipts say of the same calls. popularity: calls of each adapter in
    a week, most first, with its rank
    """
    end = (now or timezone.now()).replace(minute=0, second=0, microsecond=0) + timedelta(hours=with_this_hour)
    begins = not connection.in_atomic_block  # within a caller's transaction its isolation holds
    with transaction.atomic(), connection.cursor() as cursor:
        if begins:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute(f"SET LOCAL statement_timeout = '{_STATEMENT_SECONDS}s'")

        def rows(statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
            cursor.execute(statement, values)
            return cursor.fetchall()

        return _file(end, rows)


def _file(end: datetime, rows: Callable[..., list[tuple[Any, ...]]]) -> dict[str, Any]:
    found = rows(_HOURS, [end - timedelta(weeks=WEEKS), end])
    start = min((hour for _, _, hour, _, _ in found), default=end)
    count = int((end - start) / timedelta(hours=1))
    bases: dict[str, dict[str, Any]] = {}
    by_line: dict[str, dict[str, Any]] = {}
    for line, name, fingerprint in rows(_LINES):
        by_line[line] = bases[fingerprint] = {
            "name": name,
            "classes": {},
            "shapes": defaultdict(list),
            "gap_cv2": {},
            "times": defaultdict(list),
            "popularity": [],
            "bare_calls": 0,
            "revenue_nano_usd": 0,
        }
    for line, latency_class, hour, served, refused in found:
        one = by_line[line]["classes"].setdefault(latency_class, {"served": [0] * count, "refused": [0] * count})
        place = int((hour - start) / timedelta(hours=1))
        one["served"][place], one["refused"][place] = served, refused
    recent = sum(served for _, _, hour, served, _ in found if hour >= end - _RECENT)
    chance = min(1.0, 3 * _SHAPES * max(1, len(by_line)) / recent) if recent else 0.0
    sampled = {"round": _ROUND, "since": end - _RECENT, "chance": chance}
    for line, latency_class, prompt, cached, completion, exact, receipt in rows(_SHAPES_SQL, sampled):
        shapes = by_line[line]["shapes"][latency_class]
        if len(shapes) < _SHAPES:
            shapes.append([prompt, min(prompt - 1, cached * prompt // max(1, exact)), completion])
            by_line[line]["times"][latency_class] += _times(receipt, completion)
    for line, latency_class, spread in rows(_GAPS, [end - timedelta(days=1)]):
        if spread is not None:
            by_line[line]["gap_cv2"][latency_class] = round(float(spread), 3)
    for line, bare, rank, calls in rows(_POPULARITY, [end - _RECENT]):
        if bare:
            by_line[line]["bare_calls"] += calls
        elif calls:
            by_line[line]["popularity"].append([calls, int(rank) if (rank or "").isdigit() else _RANK])
    for line, revenue in rows(_MONEY, [end - _MONTH]):
        by_line[line]["revenue_nano_usd"] = revenue
    return {
        "format": FORMAT,
        "start": start.isoformat(),
        "hours": count,
        "days_of_revenue": _MONTH.days,
        "bases": {
            fingerprint: {**one, "shapes": dict(one["shapes"]), "times": dict(one["times"])}
            for fingerprint, one in sorted(bases.items())
        },
    }


def _times(receipt: str, completion: int) -> list[list[int]]:
    """Return the times that a replica measured, if its receipt has them."""
    try:
        claims = claims_of(receipt)
    except ReceiptRejected:
        return []
    if claims.ttft_ms is None:
        return []
    return [[completion, claims.ttft_ms, max(claims.ttft_ms, claims.duration_ms)]]
