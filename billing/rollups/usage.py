"""Sums of what an organization used, by day (UTC), model and key, after corrections; in nano-dollars.

They are read from sums alone, never from predictions, and count everything that was committed some seconds ago. A
period is whole days, those that its ends touch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from uuid import UUID

from django.db import connection
from django.utils import timezone

from billing.models import RollupQueue, SpanTotal, Usage
from billing.rollups import sums
from billing.rollups.places import NO_ID, Place
from billing.rollups.spans import FIRST_DAY, Period
from billing.rollups.sums import Sums
from marketplace.accounts.models import Organization

MAX_ROWS = 1_000
LATEST = timedelta(minutes=10)  # what is not in the sums after that is an operator's concern
_PLAYGROUND = NO_ID  # as the key of what was used there
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
    model_id: UUID | None = None

    @property
    def place(self) -> Place:
        """Return the place of this group among the others."""
        day, key = self.day or date.min, self.api_key_id or _PLAYGROUND
        if self.model_id is None:
            return Place(day, subject=key)
        return Place(day, name=self.model_name or "", subject=self.model_id, part=key)


def uncounted(organization: Organization) -> int:
    """Return how many of the organization's latest predictions are in no sum yet: they are, a few seconds later."""
    latest = Usage.objects.filter(organization_id=organization.pk, created_at__gte=timezone.now() - LATEST)
    waiting = RollupQueue.objects.filter(correction_id=None, prediction_id__in=latest.values("prediction_id"))
    return waiting.count()


def usage_summary(
    organization: Organization,
    *,
    group_by: Iterable[str] = ("day", "model", "key"),
    since: date | datetime | None = None,
    until: date | datetime | None = None,
    limit: int = MAX_ROWS,
    after: Place | None = None,
) -> list[UsageTotal]:
    """Return totals of `organization`'s usage, grouped by any of day, model, key: newest day first, then by name.

    At most `limit` groups behind the place `after`. Raises ValueError for another group.
    """
    groups = set(group_by)
    if unknown := groups - {"day", "model", "key"}:
        raise ValueError(f"cannot group by {', '.join(sorted(unknown))}; choose from day, model, key")
    period = Period.of(since, until)
    if {"model", "key"} <= groups:
        return _by_model_and_key(organization.pk, period, by_day="day" in groups, limit=limit, after=after)
    facet = _Facet.USAGE_MODEL if "model" in groups else _Facet.USAGE_KEY if "key" in groups else _Facet.USAGE
    if "day" in groups:
        rows = sums.by_day(facet, organization.pk, period, limit=limit, after=after)
    else:
        rows = sums.over_period(facet, organization.pk, period, limit=limit, after=after)
    return [_total(row, facet) for row in rows]


def top_models(
    organization: Organization, *, since: date, until: date | None = None, limit: int
) -> tuple[list[UsageTotal], int]:
    """Return the models that `organization` spent most on from `since` to before `until`, and how many it used."""
    period = Period.of(since, until)
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
        model_id=row.subject if facet == _Facet.USAGE_MODEL else None,
    )


def _by_model_and_key(
    organization_id: UUID, period: Period, *, by_day: bool, limit: int, after: Place | None
) -> list[UsageTotal]:
    """Day after day, the newest first: so a page adds up the days that it shows, and no others."""
    days = "t.day = one.day" if by_day else "t.day >= %(since)s AND t.day < %(until)s"
    key = "coalesce(t.key_line, %(playground)s)"
    behind = f"(max(t.model_name), t.model_id, {key}) > (%(name)s, %(model)s, %(key)s)"
    if by_day:
        behind = f"one.day < %(day)s OR {behind}"
    place = after or Place()
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            SELECT one.day, cell.* FROM (
                SELECT start AS day FROM billing_spantotal
                WHERE facet = %(facet)s AND organization_id = %(organization)s AND span = 1
                    AND start >= %(since)s AND start < %(until)s {"AND start <= %(day)s" if by_day and after else ""}
                ORDER BY start DESC LIMIT {"NULL" if by_day else 1}
            ) one CROSS JOIN LATERAL (
                SELECT max(t.model_name) AS name, t.key_line, sum(t.predictions)::bigint, sum(t.prompt_tokens)::bigint,
                    sum(t.completion_tokens)::bigint, sum(t.charged_nano_usd)::bigint, t.model_id
                FROM billing_usageday t WHERE t.organization_id = %(organization)s AND {days}
                GROUP BY t.model_id, t.key_line {f"HAVING {behind}" if after else ""}
                ORDER BY name, t.model_id, {key}
            ) cell LIMIT %(limit)s
            """,
            {
                "facet": _Facet.USAGE.value,
                "organization": organization_id,
                "since": period.since or FIRST_DAY,
                "until": period.until or date.max,
                "limit": limit,
                "playground": _PLAYGROUND,
                "day": place.day,
                "name": place.name,
                "model": place.subject,
                "key": place.part,
            },
        )
        return [UsageTotal(row[0] if by_day else None, *row[1:]) for row in cursor.fetchall()]
