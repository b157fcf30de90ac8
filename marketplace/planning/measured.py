"""Hours of the fleet that runs, as points on a plan's curve: calls a second of one replica, and the wait for the first
token that replicas measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from protocol.receipts import ReceiptRejected, claims_of

HOURS = 24
LEAST_CALLS = 20  # of an hour: fewer say nothing of the slowest in twenty
_SAMPLE = 200  # receipts of an hour that are read, about
_STATEMENT_SECONDS = 10

_CALLS = """
SELECT r.fingerprint, d.hour, sum(d.served + d.refused)::bigint, sum(d.served)::bigint
FROM watch_demand d JOIN catalog_version v ON v.id = d.version_id JOIN catalog_model m ON m.id = v.model_id
    JOIN catalog_basemodel b ON b.id = m.base_model_id
    JOIN catalog_basemodel r ON r.line_id = b.line_id AND r.is_reference
WHERE d.hour >= %(since)s AND d.hour < %(until)s AND r.fingerprint = ANY(%(bases)s) GROUP BY 1, 2
"""
# Replicas that prefill for others answer nobody.
_REPLICAS = """
SELECT r.fingerprint, h.hour, sum(extract(epoch FROM
    least(coalesce(p.gone_at, now()), h.hour + interval '1 hour') - greatest(p.registered_at, h.hour))) / 3600
FROM vault_replica p JOIN catalog_basemodel b ON b.fingerprint = p.base_fingerprint
    JOIN catalog_basemodel r ON r.line_id = b.line_id AND r.is_reference
    JOIN generate_series(%(since)s::timestamptz, %(until)s::timestamptz - interval '1 hour', '1 hour') AS h(hour)
        ON p.registered_at < h.hour + interval '1 hour' AND coalesce(p.gone_at, now()) > h.hour
WHERE p.role <> 'prefill' AND r.fingerprint = ANY(%(bases)s) GROUP BY 1, 2
"""
# Each prediction with the same chance, and neither who asked nor for what.
_RECEIPTS = """
SELECT r.fingerprint, date_trunc('hour', u.created_at), u.receipt
FROM billing_usage u JOIN catalog_model m ON m.id = u.model_id JOIN catalog_basemodel b ON b.id = m.base_model_id
    JOIN catalog_basemodel r ON r.line_id = b.line_id AND r.is_reference
WHERE u.created_at >= %(since)s AND u.created_at < %(until)s AND r.fingerprint = ANY(%(bases)s)
    AND random() < %(chance)s LIMIT 20000
"""


@dataclass(frozen=True, slots=True)
class MeasuredHour:
    """One hour. each: calls/s that one replica was asked for, the refused ones too; ttft: seconds within which 95 % of
    the first tokens came, as receipts say"""

    hour: datetime
    each: float
    ttft: float


def measured_hours(bases: Sequence[str], now: datetime | None = None) -> dict[str, list[MeasuredHour]]:
    """Return the last day's whole hours of each base, by the fingerprint of its reference: those with enough calls."""
    until = (now or timezone.now()).replace(minute=0, second=0, microsecond=0)
    values: dict[str, Any] = {"since": until - timedelta(hours=HOURS), "until": until, "bases": list(bases)}
    found: dict[str, list[MeasuredHour]] = defaultdict(list)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL statement_timeout = '{_STATEMENT_SECONDS}s'")

        def rows(statement: str, **more: Any) -> list[tuple[Any, ...]]:
            cursor.execute(statement, values | more)
            return cursor.fetchall()

        calls = {(base, hour): (asked, served) for base, hour, asked, served in rows(_CALLS)}
        served = sum(count for _, count in calls.values())
        if not served:
            return {}
        replicas = {(base, hour): float(count) for base, hour, count in rows(_REPLICAS)}
        waits: dict[tuple[str, datetime], list[int]] = defaultdict(list)
        for base, hour, receipt in rows(_RECEIPTS, chance=min(1.0, _SAMPLE * len(calls) / served)):
            waits[base, hour] += _wait(receipt)
    for (base, hour), (asked, _) in sorted(calls.items()):
        seen = sorted(waits[base, hour])
        if len(seen) >= LEAST_CALLS and (count := replicas.get((base, hour))):
            found[base].append(MeasuredHour(hour, asked / 3600 / count, seen[(19 * len(seen) - 1) // 20] / 1000))
    return dict(found)


def _wait(receipt: str) -> list[int]:
    """Return the milliseconds that a replica measured, if its receipt has them."""
    try:
        milliseconds = claims_of(receipt).ttft_ms
    except ReceiptRejected:
        return []
    return [] if milliseconds is None else [milliseconds]
