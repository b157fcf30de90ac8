"""Sums of an organization's usage of one model, by one key, or both: made of daily sums, never of predictions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from uuid import UUID

from django.db import connection

from billing.models.rollups import NO_SUBJECT
from billing.rollups.usage import UsageTotal
from marketplace.accounts.models import Organization

_PLAYGROUND = UUID(NO_SUBJECT)
_SUMS = """
SELECT t.day, max(t.model_name), t.key_line, sum(t.predictions)::bigint, sum(t.prompt_tokens)::bigint,
    sum(t.completion_tokens)::bigint, sum(t.charged_nano_usd)::bigint, grouping(t.day, t.model_id, t.key_line)
FROM billing_usageday t
WHERE t.organization_id = %(organization)s AND t.day >= %(since)s AND t.day < %(until)s
    AND (%(model)s::text IS NULL OR t.model_name = %(model)s)
    AND (%(key)s::uuid IS NULL OR t.key_line IS NOT DISTINCT FROM nullif(%(key)s::uuid, %(playground)s::uuid))
GROUP BY GROUPING SETS ((t.day), (t.model_id), (t.key_line))
"""
_BY_DAY, _BY_MODEL, _BY_KEY = 0b011, 0b101, 0b110  # grouping(): a 1 for each column that is summed over


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Days from `since` to before `until` (UTC), and of them the usage of a model (`org/slug`) or of a line of keys.

    `key` is the id of the line's first key; `PLAYGROUND` is what was used without one.
    """

    since: date
    until: date
    model: str | None = None
    key: UUID | None = None

    @property
    def narrows(self) -> bool:
        """Whether it leaves out more than days."""
        return self.model is not None or self.key is not None


PLAYGROUND = _PLAYGROUND


@dataclass(frozen=True, slots=True)
class FilteredSums:
    """The same usage, grouped three ways: newest day first, dearest model and key first."""

    days: tuple[UsageTotal, ...]
    models: tuple[UsageTotal, ...]
    keys: tuple[UsageTotal, ...]


def filtered_sums(organization: Organization, wanted: UsageFilter) -> FilteredSums:
    """Return the sums of what the filter leaves."""
    groups: dict[int, list[UsageTotal]] = {_BY_DAY: [], _BY_MODEL: [], _BY_KEY: []}
    with connection.cursor() as cursor:
        cursor.execute(
            _SUMS,
            {
                "organization": organization.pk,
                "since": wanted.since,
                "until": wanted.until,
                "model": wanted.model,
                "key": wanted.key,
                "playground": _PLAYGROUND,
            },
        )
        for day, name, key, *sums, kind in cursor.fetchall():
            groups[kind].append(
                UsageTotal(day, name if kind == _BY_MODEL else None, key if kind == _BY_KEY else None, *sums)
            )
    return FilteredSums(
        days=tuple(sorted(groups[_BY_DAY], key=lambda one: one.day or date.min, reverse=True)),
        models=tuple(sorted(groups[_BY_MODEL], key=lambda one: -one.cost_nano_usd)),
        keys=tuple(sorted(groups[_BY_KEY], key=lambda one: -one.cost_nano_usd)),
    )
