"""Sums of what an organization used, by day (UTC), model and key, after corrections; in nano-dollars.

They are read from sums alone, never from predictions, and count everything that was committed some seconds ago. A
period is whole days, those that its ends touch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from django.db.models import Max, Sum

from billing.models import SpanTotal, UsageDay
from billing.models.rollups import NO_SUBJECT
from billing.rollups import sums
from billing.rollups.spans import Period
from billing.rollups.sums import Sums
from marketplace.accounts.models import Organization

MAX_ROWS = 1_000
_PLAYGROUND = UUID(NO_SUBJECT)
_Facet = SpanTotal.Facet


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """Usage of one group. `day`, `model_name` and `api_key_id` are None when the groups leave them out.

    `api_key_id` is the first key of a line of rotations, None for the playground. A prediction whose cost was given
    back counts and costs nothing.
    """

    day: date | None
    model_name: str | None
    api_key_id: UUID | None
    predictions: int
    prompt_tokens: int
    completion_tokens: int
    cost_nano_usd: int


def usage_summary(
    organization: Organization,
    *,
    group_by: Iterable[str] = ("day", "model", "key"),
    since: date | datetime | None = None,
    until: date | datetime | None = None,
) -> list[UsageTotal]:
    """Return totals of `organization`'s usage, grouped by any of day, model, key: newest day first, then by name.

    At most `MAX_ROWS` groups. Raises ValueError for another group.
    """
    groups = set(group_by)
    if unknown := groups - {"day", "model", "key"}:
        raise ValueError(f"cannot group by {', '.join(sorted(unknown))}; choose from day, model, key")
    period = Period.of(since, until)
    if {"model", "key"} <= groups:
        return _by_model_and_key(organization, period, by_day="day" in groups)
    facet = _Facet.USAGE_MODEL if "model" in groups else _Facet.USAGE_KEY if "key" in groups else _Facet.USAGE
    if "day" in groups:
        rows = sums.by_day(facet, organization.pk, period, limit=MAX_ROWS)
    else:
        rows = sums.over_period(facet, organization.pk, period, limit=MAX_ROWS)
    return [_total(row, facet) for row in rows]


def top_models(organization: Organization, *, since: date, limit: int) -> tuple[list[UsageTotal], int]:
    """Return the models that `organization` spent most on since that day, and how many models it used."""
    period = Period(since)
    rows = sums.over_period(_Facet.USAGE_MODEL, organization.pk, period, order="charged", limit=limit)
    return [_total(row, _Facet.USAGE_MODEL) for row in rows], rows[0].groups if rows else 0


def _total(row: Sums, facet: SpanTotal.Facet) -> UsageTotal:
    return UsageTotal(
        day=row.day,
        model_name=row.label if facet == _Facet.USAGE_MODEL else None,
        api_key_id=row.subject if facet == _Facet.USAGE_KEY and row.subject != _PLAYGROUND else None,
        predictions=row.predictions,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        cost_nano_usd=row.charged,
    )


def _by_model_and_key(organization: Organization, period: Period, *, by_day: bool) -> list[UsageTotal]:
    days = {"day__gte": period.since, "day__lt": period.until}
    cells = UsageDay.objects.filter(organization_id=organization.pk)
    cells = cells.filter(**{name: day for name, day in days.items() if day is not None})
    totals = (
        cells.values(*(["day"] if by_day else []), "model_id", "key_line")
        .annotate(
            name=Max("model_name"),
            count=Sum("predictions"),
            tokens_in=Sum("prompt_tokens"),
            tokens_out=Sum("completion_tokens"),
            cost=Sum("charged_nano_usd"),
        )
        .order_by(*(["-day"] if by_day else []), "name", "model_id", "key_line")[:MAX_ROWS]
    )
    return [
        UsageTotal(
            day=row.get("day"),
            model_name=row["name"],
            api_key_id=row["key_line"],
            predictions=int(row["count"]),
            prompt_tokens=int(row["tokens_in"]),
            completion_tokens=int(row["tokens_out"]),
            cost_nano_usd=int(row["cost"]),
        )
        for row in totals
    ]
