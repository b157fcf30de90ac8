"""Sums of what an organization earned by single versions of models, after corrections; in nano-dollars.

They are read from the sums of days alone, so a period is whole days (UTC), those that its ends touch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from django.db.models import Max, Q, Sum, Value
from django.db.models.functions import Coalesce

from billing.models import EarningsDay
from billing.rollups.places import NO_ID, Place
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

    @property
    def place(self) -> Place:
        """Return the place of this group: on its day, or among those that earned less."""
        return Place(
            day=self.day or date.min,
            earned=0 if self.day else self.earned_nano_usd,
            name=self.model_name,
            subject=self.model_id,
            part=self.version_id or NO_ID,
        )


def by_version(
    organization: Organization,
    *,
    since: date | datetime | None = None,
    until: date | datetime | None = None,
    model_ids: Collection[UUID] | None = None,
    each_day: bool = False,
    limit: int = MAX_ROWS,
    after: Place | None = None,
) -> tuple[VersionEarnings, ...]:
    """Return what `organization` earned by each version: the best first, or `each_day` by itself, newest first.

    after: those behind this place alone
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
        part=Coalesce("version_id", Value(NO_ID)),
        all_predictions=Sum("predictions"),
        prompt=Sum("prompt_tokens"),
        completion=Sum("completion_tokens"),
        charged=Sum("charged_nano_usd"),
        earned=Sum("earned_nano_usd"),
    )
    first = "day" if each_day else "earned"
    if after is not None:
        sums = sums.filter(_behind(after, first))
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
        for row in sums.order_by(f"-{first}", "name", "model_id", "part")[: min(limit, MAX_ROWS)]
    )


def _behind(place: Place, first: str) -> Q:
    """Return the condition on groups behind `place`; `first` of the order is `day` or `earned`, descending."""
    same = Q(**{first: getattr(place, first)})
    found = Q(**{f"{first}__lt": getattr(place, first)})
    for column, value in (("name", place.name), ("model_id", place.subject), ("part", place.part)):
        found |= same & Q(**{f"{column}__gt": value})
        same &= Q(**{column: value})
    return found
