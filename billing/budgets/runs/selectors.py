"""Reads of runs, each for one organization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from billing.models import Hold, Run, Usage
from marketplace.accounts.models import Organization


@dataclass(frozen=True, slots=True)
class Call:
    """One prediction of a run. `usage` is that of a charged one, with the replica's receipt."""

    hold: Hold
    usage: Usage | None

    @property
    def state(self) -> str:
        """Return where it stands: running, charged or free."""
        return {"open": "running", "settled": "charged", "released": "free"}[self.hold.state]

    @property
    def ended_at(self) -> datetime | None:
        """Return when the books closed it."""
        return self.hold.closed_at


def runs_of(organization: Organization) -> QuerySet[Run]:
    """Return the organization's runs with their nodes; the caller orders them."""
    return Run.objects.filter(organization=organization).select_related("node", "organization")


def run_of(organization: Organization, run_id: UUID) -> Run | None:
    """Return one run of this organization, or None."""
    return runs_of(organization).filter(pk=run_id).first()


def calls_of(run: Run) -> QuerySet[Hold]:
    """Return the holds of the run's calls; the caller orders them."""
    return Hold.objects.filter(run_id=run.pk, organization_id=run.organization_id)


def with_usage(holds: Sequence[Hold]) -> list[Call]:
    """Return the calls of these holds, in their order, with one query for what was charged."""
    settled = [hold for hold in holds if hold.state == Hold.State.SETTLED]
    found: dict[UUID, Any] = {}
    if settled:
        times = [hold.closed_at for hold in settled if hold.closed_at is not None]  # usage is partitioned by them
        rows = Usage.objects.filter(
            prediction_id__in=[hold.pk for hold in settled],
            created_at__gte=min(times),
            created_at__lte=max(times),
        )
        found = {row.prediction_id: row for row in rows}
    return [Call(hold, found.get(hold.pk)) for hold in holds]
