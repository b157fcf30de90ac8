"""Blocks: the smallest times of which anything is shown, each with enough calls by enough payers.

Whole hours are put together until they have 20 requests by 3 organizations that paid for the version and are not its
creator. Then they are one block for ever. Pages, API, drift and alarms read blocks alone, so that everything that is
shown is a sum of whole blocks, and so is the difference of any two things that are shown: no smaller group can be
computed from two windows, two totals or two looks a minute apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from django.db import connection, transaction

from marketplace.catalog.models import Version
from marketplace.watch.alarms import look_at
from marketplace.watch.locks import lock_mark
from marketplace.watch.models import Block, Hour, HourCaller, Payer
from marketplace.watch.rollup import ONE_HOUR, callers_of
from marketplace.watch.sums import Sums

LEAST_REQUESTS = 20
LEAST_PAYERS = 3
# Versions that may have enough: the creator is among the payers here. Most versions that wait are left out by it.
_CANDIDATES = """
SELECT c.version_id FROM watch_hourcaller c
JOIN watch_payer p ON p.version_id = c.version_id AND p.organization_id = c.organization_id
WHERE c.hour <= %s GROUP BY c.version_id
HAVING sum(c.requests) >= %s AND count(DISTINCT c.organization_id) >= %s
"""


def is_enough(requests_of_payers: Mapping[UUID, int]) -> bool:
    """Return whether so many requests by these payers may be shown together."""
    return len(requests_of_payers) >= LEAST_PAYERS and sum(requests_of_payers.values()) >= LEAST_REQUESTS


@transaction.atomic
def close_blocks() -> int:
    """Make blocks of the hours that are over and complete, and let alarms look at each; return how many were made."""
    mark = lock_mark()
    if mark.complete_at is None:
        return 0
    last = mark.complete_at - ONE_HOUR
    with connection.cursor() as cursor:
        cursor.execute(_CANDIDATES, [last, LEAST_REQUESTS, LEAST_PAYERS])
        candidates = [version_id for (version_id,) in cursor.fetchall()]
    versions = Version.objects.filter(pk__in=candidates).select_related("model__organization")
    return sum(_close(version, last) for version in versions)


def _close(version: Version, last: datetime) -> int:
    """Make blocks of one version's hours up to `last`, oldest first."""
    rows, callers = Hour.objects.filter(version_id=version.pk, hour__lte=last).order_by("hour"), callers_of(version.pk)
    payers = set(Payer.objects.filter(version_id=version.pk).values_list("organization_id", flat=True))
    payers.discard(version.model.organization_id)
    made, taken = 0, list[Hour]()
    requests: dict[UUID, int] = defaultdict(int)
    for row in rows:
        taken.append(row)
        for organization_id, count in callers.get(row.hour, {}).items():
            if organization_id in payers:
                requests[organization_id] += count
        if is_enough(requests):
            look_at(version, _block(version.pk, taken))
            made, taken = made + 1, []
            requests.clear()
    return made


def _block(version_id: UUID, rows: list[Hour]) -> Block:
    sums = Sums()
    for row in rows:
        sums.add(Sums.of(row))
    hours: list[datetime] = [row.hour for row in rows]
    block = Block.objects.create(version_id=version_id, start=hours[0], end=hours[-1] + ONE_HOUR, **sums.columns())
    HourCaller.objects.filter(version_id=version_id, hour__in=hours).delete()
    Hour.objects.filter(pk__in=[row.pk for row in rows]).delete()
    return block
