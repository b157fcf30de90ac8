"""Sums of what an organization earned by single versions of models, after corrections; in nano-dollars.

They are read from the sums of days alone, so a period is whole days (UTC), those that its ends touch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from django.db.models import Max, Sum

from billing.models import EarningsDay
from billing.rollups.spans import Period
from marketplace.accounts.models import Organization

MAX_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class VersionEarnings:
    """A payee's earnings by one version: `charged` is what customers paid, `earned` this organization's part of it.

    day: None for the whole period; version_id: None for predictions that name no version
    """

    day: date | None
    model_id: UUID
    model_name: str
    version_id: UUID | None
    predictions: int
    prompt_tokens: int
    completion_tokens: int
    charged_nano_usd: int
    earned_nano_usd: int


def by_version(
    organization: Organization,
    *,
    since: date | datetime | None = None,
    until: date | datetime | None = None,
    model_ids: Collection[UUID] | None = None,
    each_day: bool = False,
    limit: int = MAX_ROWS,
    offset: int = 0,
) -> tuple[VersionEarnings, ...]:
    """Return what `organization` earned by each version: the best first, or `each_day` by itself, newest first.

    model_ids: by versions of these models alone. All of a creator of ten thousand models are a tenth of a second's work
    """
    period = Period.of(since, until)
    rows = EarningsDay.objects.filter(organization_id=organization.pk)
    if period.since is not None:
        rows = rows.filter(day__gte=period.since)
    if period.until is not None:
        rows = rows.filter(day__lt=period.until)
    if model_ids is not None:
        rows = rows.filter(model_id__in=model_ids)
    groups = ("day", "model_id", "version_id") if each_day else ("model_id", "version_id")
    sums = rows.values(*groups).annotate(
        name=Max("model_name"),
        all_predictions=Sum("predictions"),
        prompt=Sum("prompt_tokens"),
        completion=Sum("completion_tokens"),
        charged=Sum("charged_nano_usd"),
        earned=Sum("earned_nano_usd"),
    )
    order = ("-day", "name", "version_id") if each_day else ("-earned", "name", "version_id")
    return tuple(
        VersionEarnings(
            day=row.get("day"),
            model_id=row["model_id"],
            model_name=row["name"],
            version_id=row["version_id"],
            predictions=int(row["all_predictions"]),
            prompt_tokens=int(row["prompt"]),
            completion_tokens=int(row["completion"]),
            charged_nano_usd=int(row["charged"]),
            earned_nano_usd=int(row["earned"]),
        )
        for row in sums.order_by(*order)[offset : offset + min(limit, MAX_ROWS)]
    )
