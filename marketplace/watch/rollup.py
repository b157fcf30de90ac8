"""From the books to hours: each prediction is added once, off the hot path.

`billing_roll_up` deletes from its queue what it has counted; a trigger passes that on to `watch_settled`, from which
this module deletes what it has added, in the transaction of the sums: nothing is added twice or never.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from django.db import connection, transaction
from django.db.models import Max

from billing.models import RollupMark
from marketplace.watch.demand import DemandTally
from marketplace.watch.locks import lock_mark
from marketplace.watch.models import Block, Hour, HourCaller, Payer
from marketplace.watch.sums import Sums, bucket_of
from protocol.receipts import ReceiptRejected, claims_of

ROWS_AT_ONCE = 5_000
ONE_HOUR = timedelta(hours=1)
_TAKE = """
WITH due AS (
    DELETE FROM watch_settled WHERE id = ANY (ARRAY(SELECT id FROM watch_settled ORDER BY id LIMIT %s))
    RETURNING prediction_id, settled_at
)
SELECT u.version_id, date_trunc('hour', u.created_at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC', u.organization_id,
    u.prompt_tokens, u.completion_tokens, u.cost_nano_usd, u.finish_reason, u.receipt, u.latency_class,
    u.cached_tokens, coalesce(h.created_at, u.created_at)
FROM due LEFT JOIN billing_usage u ON u.prediction_id = due.prediction_id AND u.created_at = due.settled_at
    LEFT JOIN billing_hold h ON h.id = due.prediction_id
"""
_ADD_CALLERS = """
INSERT INTO watch_hourcaller AS t (version_id, hour, organization_id, requests)
SELECT * FROM unnest(%s::uuid[], %s::timestamptz[], %s::uuid[], %s::bigint[])
ON CONFLICT (version_id, hour, organization_id) DO UPDATE SET requests = t.requests + excluded.requests
"""
Place = tuple[UUID, datetime]  # a version in an hour


@dataclass(slots=True)
class Tally:
    """The additions of a batch: sums and callers of hours, payers, and demand."""

    sums: dict[Place, Sums] = field(default_factory=lambda: defaultdict(Sums))
    callers: dict[tuple[UUID, datetime, UUID], int] = field(default_factory=lambda: defaultdict(int))
    payers: set[tuple[UUID, UUID]] = field(default_factory=set)
    demand: DemandTally = field(default_factory=DemandTally)

    def request(self, version_id: UUID, hour: datetime, organization_id: UUID, count: int = 1) -> Sums:
        """Count `count` requests by an organization, and return the sums that they belong to."""
        if count:
            self.callers[version_id, hour, organization_id] += count
        return self.sums[version_id, hour]


def roll_up(rows_at_once: int = ROWS_AT_ONCE) -> int:
    """Add what the books have and no hour has; return how many predictions that were."""
    counted = 0
    while True:
        now = _add_batch(rows_at_once)
        counted += now
        if now < rows_at_once:
            return counted


@transaction.atomic
def _add_batch(rows_at_once: int) -> int:
    mark = lock_mark()
    # Read before the rows: what is committed later belongs to a later mark.
    complete_at = RollupMark.objects.filter(pk=1).values_list("complete_at", flat=True).first()
    with connection.cursor() as cursor:
        cursor.execute(_TAKE, [rows_at_once])
        rows = cursor.fetchall()
    tally = Tally()
    for row in rows:
        if row[0] is not None:
            _count(tally, row)
    add(tally)
    if len(rows) < rows_at_once and complete_at is not None:
        mark.complete_at = complete_at
        mark.save(update_fields=["complete_at"])
    return len(rows)


def _count(tally: Tally, row: tuple[Any, ...]) -> None:
    version_id, hour, organization_id, prompt, completion, cost, finish_reason, receipt, latency_class, *rest = row
    cached, arrived = rest
    tally.demand.served(version_id, arrived, latency_class, prompt=prompt, cached=cached, completion=completion)
    sums = tally.request(version_id, hour, organization_id)
    sums.calls += 1
    sums.spent_nano_usd += cost
    sums.finish[finish_reason] = sums.finish.get(finish_reason, 0) + 1
    sums.prompt[bucket_of(prompt)] += 1
    sums.completion[bucket_of(completion)] += 1
    if cost:
        tally.payers.add((version_id, organization_id))
    try:
        claims = claims_of(receipt)
    except ReceiptRejected:
        return  # times and answer are the receipt's alone
    if claims.ttft_ms is not None:
        sums.ttft[bucket_of(claims.ttft_ms)] += 1
    sums.duration[bucket_of(claims.duration_ms)] += 1
    if claims.answer is not msgspec.UNSET:
        sums.count_answer(claims.answer)


def add(tally: Tally) -> None:
    """Add a batch to the hours, under the mark's lock. An hour that is in a block already counts in the next one."""
    ends = _ends_of_blocks({version_id for version_id, _ in tally.sums})
    open_sums: dict[Place, Sums] = {}
    for (version_id, hour), sums in tally.sums.items():
        place = version_id, max(hour, ends.get(version_id, hour))
        open_sums.setdefault(place, Sums()).add(sums)
    for row in Hour.objects.filter(version_id__in={one for one, _ in open_sums}):
        if (row.version_id, row.hour) in open_sums:
            open_sums[row.version_id, row.hour].add(Sums.of(row))
    rows = [Hour(version_id=version, hour=hour, **sums.columns()) for (version, hour), sums in open_sums.items()]
    Hour.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["version_id", "hour"],
        update_fields=list(Sums().columns()),
    )
    callers: dict[tuple[UUID, datetime, UUID], int] = defaultdict(int)
    for (version_id, hour, organization_id), requests in tally.callers.items():
        callers[version_id, max(hour, ends.get(version_id, hour)), organization_id] += requests
    if callers:
        columns = [list(column) for column in zip(*(key for key in callers), strict=True)]
        with connection.cursor() as cursor:
            cursor.execute(_ADD_CALLERS, [*columns, list(callers.values())])
    payers = [Payer(version_id=version, organization_id=organization) for version, organization in tally.payers]
    Payer.objects.bulk_create(payers, ignore_conflicts=True)
    tally.demand.write()


def callers_of(version_id: UUID) -> dict[datetime, dict[UUID, int]]:
    """Return the requests of each organization in each hour that is in no block."""
    found: dict[datetime, dict[UUID, int]] = defaultdict(dict)
    rows = HourCaller.objects.filter(version_id=version_id).values_list("hour", "organization_id", "requests")
    for hour, organization_id, requests in rows:
        found[hour][organization_id] = requests
    return found


def _ends_of_blocks(versions: set[UUID]) -> dict[UUID, datetime]:
    rows = Block.objects.filter(version_id__in=versions).values("version_id").annotate(last=Max("end"))
    return {row["version_id"]: row["last"] for row in rows}
