"""Demand by hour for plans of the fleet: what was served, and what capacity refused, without any customer.

A refused request would have been load. Whoever forecasts from the served ones alone forecasts the ceiling of a full
fleet. A client that tries again is refused again, and counts again: `refused` is an upper bound.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import connection
from django.utils import timezone

from marketplace.watch.models import Demand

KEPT = timedelta(weeks=26)
# Refusals for want of capacity. Limits of a customer, bad requests and faults of the platform are none.
CAPACITY_CODES = frozenset(
    {"no_replica", "queue_full", "tenant_queue_full", "deadline_unmeetable", "busy", "scaled_to_zero"}
)
_ADD = """
INSERT INTO watch_demand AS t (version_id, hour, latency_class, served, refused, prompt_tokens, cached_tokens,
    completion_tokens)
SELECT * FROM unnest(%s::uuid[], %s::timestamptz[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[],
    %s::bigint[], %s::bigint[])
ON CONFLICT (version_id, hour, latency_class) DO UPDATE SET served = t.served + excluded.served,
    refused = t.refused + excluded.refused, prompt_tokens = t.prompt_tokens + excluded.prompt_tokens,
    cached_tokens = t.cached_tokens + excluded.cached_tokens,
    completion_tokens = t.completion_tokens + excluded.completion_tokens
"""


@dataclass(slots=True)
class _Counts:
    served: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class DemandTally:
    """The additions of a batch. `write` adds them, in the transaction that takes the batch from its source."""

    def __init__(self) -> None:
        """Start empty."""
        self._counts: dict[tuple[UUID, datetime, str], _Counts] = defaultdict(_Counts)

    def served(
        self, version_id: UUID, arrived: datetime, latency_class: str, *, prompt: int, cached: int, completion: int
    ) -> None:
        """Count a prediction that was served, in the hour in which it arrived."""
        counts = self._counts[version_id, _hour(arrived), latency_class]
        counts.served += 1
        counts.prompt_tokens += prompt
        counts.cached_tokens += cached
        counts.completion_tokens += completion

    def refused(self, version_id: UUID, hour: datetime, latency_class: str, code: str, count: int) -> None:
        """Count requests that were refused, if it was for want of capacity."""
        if code in CAPACITY_CODES:
            self._counts[version_id, _hour(hour), latency_class].refused += count

    def write(self) -> None:
        """Add the counts to the hours."""
        if not self._counts:
            return
        places = sorted(self._counts)
        versions, hours, classes = (list(column) for column in zip(*places, strict=True))
        counts = [self._counts[place] for place in places]
        with connection.cursor() as cursor:
            cursor.execute(
                _ADD,
                [
                    versions,
                    hours,
                    classes,
                    [one.served for one in counts],
                    [one.refused for one in counts],
                    [one.prompt_tokens for one in counts],
                    [one.cached_tokens for one in counts],
                    [one.completion_tokens for one in counts],
                ],
            )


def drop_old_demand() -> int:
    """Delete hours that no forecast reads any more; return how many rows."""
    dropped, _ = Demand.objects.filter(hour__lt=timezone.now() - KEPT).delete()
    return dropped


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)
