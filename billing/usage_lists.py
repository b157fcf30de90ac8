"""Single predictions of an organization, filtered and in pages, for lists and files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time
from uuid import UUID

from django.db.models import Q, QuerySet

from billing.models import Usage
from billing.papers.csv_file import safe_text
from billing.rollups.filtered import PLAYGROUND, UsageFilter
from billing.selectors import usage_with_refunds
from marketplace.accounts.models import ApiKey, Organization

MAX_CSV_ROWS = 50_000
_CHUNK = 2_000
_NEWEST_FIRST = ("-created_at", "-prediction_id")
CSV_COLUMNS = (
    "time_utc",
    "prediction_id",
    "model",
    "key_id",
    "latency_class",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "cost_nano_usd",
    "refunded",
    "finish_reason",
)


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the list: the prediction that a page ended with."""

    created_at: datetime
    prediction_id: UUID

    def __str__(self) -> str:
        return f"{int(self.created_at.timestamp() * 10**6)}_{self.prediction_id.hex}"

    @classmethod
    def read(cls, text: str) -> Position | None:
        """Return the position that a page's address names; None for another text."""
        moment, _, name = text.partition("_")
        try:
            microseconds = int(moment[:17])
            whole, rest = divmod(microseconds, 10**6)
            return cls(datetime.fromtimestamp(whole, UTC).replace(microsecond=rest), UUID(name))
        except (ValueError, OverflowError, OSError):
            return None


@dataclass(frozen=True, slots=True)
class UsagePage:
    """Predictions with `charged_nano_usd` and `refunded`, newest first; `following` names the next page."""

    rows: list[Usage]
    following: Position | None


def usage_page(organization: Organization, wanted: UsageFilter, *, after: Position | None, limit: int) -> UsagePage:
    """Return the predictions that come after a position, at most `limit`."""
    rows = list(_matching(organization, wanted, after)[: limit + 1])
    following = Position(rows[limit - 1].created_at, rows[limit - 1].prediction_id) if len(rows) > limit else None
    return UsagePage(rows[:limit], following)


def usage_csv(organization: Organization, wanted: UsageFilter) -> str:
    """Return the predictions as CSV (RFC 4180), the newest `MAX_CSV_ROWS` of them. Amounts are nano-dollars."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(CSV_COLUMNS)
    for row in _every(organization, wanted):
        writer.writerow(
            (
                row.created_at.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00"),
                row.prediction_id,
                safe_text(row.model_name),
                row.api_key_id or "",
                row.latency_class,
                row.prompt_tokens,
                row.cached_tokens,
                row.completion_tokens,
                row.charged_nano_usd,  # type: ignore[attr-defined]
                "yes" if row.refunded else "no",  # type: ignore[attr-defined]
                row.finish_reason,
            )
        )
    return out.getvalue()


def _every(organization: Organization, wanted: UsageFilter) -> Iterator[Usage]:
    after, left = None, MAX_CSV_ROWS
    while left > 0:
        page = usage_page(organization, wanted, after=after, limit=min(_CHUNK, left))
        yield from page.rows
        left -= len(page.rows)
        after = page.following
        if after is None:
            return


def _matching(organization: Organization, wanted: UsageFilter, after: Position | None) -> QuerySet[Usage]:
    first, last = (datetime.combine(day, time.min, UTC) for day in (wanted.since, wanted.until))
    rows = usage_with_refunds().filter(organization_id=organization.pk, created_at__gte=first, created_at__lt=last)
    if wanted.model is not None:
        rows = rows.filter(model_name=wanted.model)
    if wanted.key == PLAYGROUND:
        rows = rows.filter(api_key_id=None)
    elif wanted.key is not None:
        line = ApiKey.objects.filter(Q(pk=wanted.key) | Q(first_key=wanted.key), organization=organization)
        rows = rows.filter(api_key_id__in=list(line.values_list("pk", flat=True)))
    if after is not None:
        earlier = Q(created_at=after.created_at, prediction_id__lt=after.prediction_id)
        # The first condition alone lets the index begin there.
        rows = rows.filter(created_at__lte=after.created_at).filter(Q(created_at__lt=after.created_at) | earlier)
    return rows.defer("receipt").order_by(*_NEWEST_FIRST)
