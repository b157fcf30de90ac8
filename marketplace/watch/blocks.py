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

from django.db import transaction

from marketplace.catalog.models import Version
from marketplace.watch.alarms import look_at
from marketplace.watch.models import Block, Hour, HourCaller, Payer
from marketplace.watch.rollup import ONE_HOUR, callers_of, locked_mark
from marketplace.watch.sums import Sums

LEAST_REQUESTS = 20
LEAST_PAYERS = 3


def is_enough(requests_of_payers: Mapping[UUID, int]) -> bool:
    """Return whether so many requests by these payers may be shown together."""
    return len(requests_of_payers) >= LEAST_PAYERS and sum(requests_of_payers.values()) >= LEAST_REQUESTS


@transaction.atomic
def close_blocks() -> int:
    """Make blocks of the hours that are over and complete, and let alarms look at each; return how many were made."""
    mark = locked_mark()
    if mark.complete_at is None:
        return 0
    hours: dict[UUID, list[Hour]] = defaultdict(list)
    for row in Hour.objects.filter(hour__lte=mark.complete_at - ONE_HOUR).order_by("version_id", "hour"):
        hours[row.version_id].append(row)
    versions = Version.objects.select_related("model__organization").in_bulk(list(hours))
    return sum(_close(versions[version_id], rows) for version_id, rows in hours.items() if version_id in versions)


def _close(version: Version, rows: list[Hour]) -> int:
    """Make blocks of one version's hours, oldest first."""
    payers = set(Payer.objects.filter(version_id=version.pk).values_list("organization_id", flat=True))
    payers.discard(version.model.organization_id)
    made, taken = 0, list[Hour]()
    requests: dict[UUID, int] = defaultdict(int)
    for row in rows:
        taken.append(row)
        for organization_id, count in callers_of(version.pk, [row.hour]).items():
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
