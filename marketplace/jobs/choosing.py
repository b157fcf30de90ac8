"""A worker takes calls: fairly among organizations, under one lock, within limits that leave room for live traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Count, F, Min, QuerySet
from django.db.models.functions import Coalesce, Now
from django.utils import timezone

from marketplace.accounts.models import ApiKey
from marketplace.jobs.fairness import share
from marketplace.jobs.locks import lock_queue
from marketplace.jobs.models import AsyncPrediction, Batch, BatchLine, Call

MOST_LINES, LINES_EACH = 16, 8  # of batches that run at once: in all, and of one organization
MOST_PREDICTIONS, PREDICTIONS_EACH = 16, 8
CLAIM = timedelta(seconds=60)  # renewed by a worker that lives
_MOST_BATCHES = 1_000  # that are looked at in one turn


@dataclass(frozen=True, slots=True, repr=False)
class Task:
    """One call that this worker has claimed."""

    call: BatchLine | AsyncPrediction
    organization_id: UUID
    key: ApiKey
    path: str

    @property
    def name(self) -> str:
        """Return the call's name for good: under it, no call is paid twice."""
        return f"job:{self.call.pk.hex}"


@transaction.atomic
def take(slots: int, narrow: Mapping[UUID, int]) -> list[Task]:
    """Claim up to `slots` calls, predictions before lines; `narrow` are lower limits of some organizations."""
    if slots <= 0:
        return []
    lock_queue()
    tasks = _predictions(slots, narrow)
    return tasks + _lines(slots - len(tasks), narrow)


def renew(tasks: list[Task]) -> None:
    """Say that the worker of these calls lives."""
    for kind in (BatchLine, AsyncPrediction):
        mine = [task.call.pk for task in tasks if isinstance(task.call, kind)]
        kind.objects.filter(pk__in=mine, state=Call.State.RUNNING).update(due_at=Now() + CLAIM)


def _predictions(slots: int, narrow: Mapping[UUID, int]) -> list[Task]:
    due = AsyncPrediction.objects.filter(state__in=Call.OPEN, due_at__lte=Now())
    waiting = due.values("organization").annotate(count=Count("pk"), oldest=Min("created_at")).order_by("oldest")
    wanted = {row["organization"]: row["count"] for row in waiting}
    if not wanted:
        return []
    running = _running(AsyncPrediction.objects.all(), "organization")
    room = min(slots, MOST_PREDICTIONS - sum(running.values()))
    shares = share(wanted, running, room=room, most=narrow, each=PREDICTIONS_EACH)
    found: list[Task] = []
    for organization_id, count in shares.items():
        rows = due.filter(organization=organization_id).select_related("api_key").order_by("created_at", "id")
        found += [Task(row, organization_id, row.api_key, row.endpoint) for row in rows[:count]]
    _claim(AsyncPrediction.objects.filter(pk__in=[task.call.pk for task in found]))
    ids = [task.call.pk for task in found]
    AsyncPrediction.objects.filter(pk__in=ids).update(started_at=Coalesce("started_at", Now()))
    return found


def _lines(slots: int, narrow: Mapping[UUID, int]) -> list[Task]:
    states = (Batch.State.IN_PROGRESS, Batch.State.CANCELLING, Batch.State.FINALIZING)
    batches = list(
        Batch.objects.filter(state__in=states).select_related("api_key").order_by("created_at")[:_MOST_BATCHES]
    )
    if slots <= 0 or not batches:
        return []
    running = _running(BatchLine.objects.all(), "batch__organization")
    room = min(slots, MOST_LINES - sum(running.values()))
    wanted = {batch.organization_id: LINES_EACH for batch in batches}
    shares = share(wanted, running, room=room, most=narrow, each=LINES_EACH)
    found: list[Task] = []
    for batch in batches:
        left = shares.get(batch.organization_id, 0)
        if left <= 0:
            continue
        due = BatchLine.objects.filter(batch=batch, state__in=Call.OPEN, due_at__lte=Now()).order_by("number")
        rows = list(due[:left])
        shares[batch.organization_id] = left - len(rows)
        found += [Task(row, batch.organization_id, batch.api_key, batch.endpoint) for row in rows]
    _claim(BatchLine.objects.filter(pk__in=[task.call.pk for task in found]))
    return found


def _running(calls: QuerySet[BatchLine] | QuerySet[AsyncPrediction], organization: str) -> dict[UUID, int]:
    claimed = calls.filter(state=Call.State.RUNNING, due_at__gt=timezone.now())
    return dict(claimed.values_list(organization).annotate(Count("pk")))


def _claim(calls: QuerySet[BatchLine] | QuerySet[AsyncPrediction]) -> None:
    calls.update(state=Call.State.RUNNING, due_at=Now() + CLAIM, tries=F("tries") + 1)
