"""Sums of what an organization earned, by day (UTC) and model, after corrections; and the platform's; in nano-dollars.

An organization earns as the creator of a model, and by every other part of a split that names it. Sums are read from
sums alone, never from predictions, and count everything that was committed some seconds ago. A period is whole days,
those that its ends touch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from django.db.models import Count, Q
from django.utils import timezone

from billing.models import Account, RollupQueue, SpanCustomer, SpanTotal
from billing.models.rollups import NO_SUBJECT
from billing.rollups import sums
from billing.rollups.places import NO_ID, Place
from billing.rollups.spans import ALL_TIME, Period
from billing.rollups.sums import Sums
from marketplace.accounts.models import Organization

MAX_ROWS = 1_000
_Facet = SpanTotal.Facet


@dataclass(frozen=True, slots=True)
class EarningsLine:
    """A payee's earnings in one group: `charged` is what the customers paid, `creator` this organization's part of it.

    `consumers` counts organizations. It is None for a model in a part of time, whose days have customers in common.
    """

    day: date | None
    model_name: str | None
    predictions: int
    consumers: int | None
    completion_tokens: int
    charged_nano_usd: int
    creator_nano_usd: int
    model_id: UUID | None = None

    @property
    def place(self) -> Place:
        """Return the place of this line: of a day, or of a model among those that earned less."""
        return Place(self.day) if self.day else Place(earned=self.creator_nano_usd, subject=self.model_id or NO_ID)


@dataclass(frozen=True, slots=True)
class Earnings:
    """A payee's totals, what of them is not paid out, and both groupings; `models` is how many there are in all."""

    balances: Balances
    total: EarningsLine
    by_day: tuple[EarningsLine, ...]
    by_model: tuple[EarningsLine, ...]
    models: int


@dataclass(frozen=True, slots=True)
class PlatformTotals:
    """All predictions: what customers were charged and payees earned. `uncounted` rows wait to be added."""

    charged: int
    earned: int
    predictions: int
    uncounted: int


@dataclass(frozen=True, slots=True)
class Balances:
    """Earnings that no payout has taken yet: in reserve, and payable now; and what the organization owes of them."""

    reserve_nano_usd: int
    payable_nano_usd: int
    owed_nano_usd: int  # positive: taken back after it was paid out; set against earnings first

    @property
    def net_nano_usd(self) -> int:
        """Return what the platform owes in the end; negative for an organization that owes more than it has."""
        return self.reserve_nano_usd + self.payable_nano_usd - self.owed_nano_usd


def earnings(
    organization: Organization,
    *,
    since: date | datetime | None = None,
    until: date | datetime | None = None,
    limit: int = MAX_ROWS,
    after_day: Place | None = None,
    after_model: Place | None = None,
) -> Earnings:
    """Return what `organization` earned: in all, and by day and by model at most `limit` behind these places."""
    models, count = by_model(organization, since=since, until=until, limit=limit, after=after_model)
    return Earnings(
        balances=balances(organization),
        total=earnings_total(organization, since=since, until=until),
        by_day=by_day(organization, since=since, until=until, limit=limit, after=after_day),
        by_model=models,
        models=count,
    )


def by_day(
    organization: Organization,
    *,
    since: date | datetime | None = None,
    until: date | datetime | None = None,
    limit: int = MAX_ROWS,
    after: Place | None = None,
) -> tuple[EarningsLine, ...]:
    """Return what `organization` earned on each day, newest first, at most `limit` days behind the place `after`."""
    rows = sums.by_day(_Facet.EARNINGS, organization.pk, Period.of(since, until), limit=limit, after=after)
    return tuple(_line(row, row.customers) for row in rows)


def by_model(
    organization: Organization,
    *,
    since: date | datetime | None = None,
    until: date | datetime | None = None,
    limit: int = MAX_ROWS,
    after: Place | None = None,
) -> tuple[tuple[EarningsLine, ...], int]:
    """Return the models by which `organization` earned most, behind the place `after`, and how many it earned by."""
    period = Period.of(since, until)
    rows = sums.over_period(_Facet.EARNINGS_MODEL, organization.pk, period, order="earned", limit=limit, after=after)
    lines = tuple(_line(row, row.customers if period == Period() else None) for row in rows)
    # Every row says how many there are; behind the last one, the first one is asked.
    counted = rows or (after and sums.over_period(_Facet.EARNINGS_MODEL, organization.pk, period, order="earned"))
    return lines, counted[0].groups if counted else 0


def customers_ever(organization: Organization, model_ids: Collection[UUID]) -> dict[UUID, int]:
    """Return how many organizations ever paid for each of these models, of those that earned something."""
    totals = SpanTotal.objects.filter(
        facet=_Facet.EARNINGS_MODEL, organization_id=organization.pk, span=ALL_TIME, subject__in=model_ids
    )
    return dict(totals.values_list("subject", "customers"))


def earnings_total(
    organization: Organization, *, since: date | datetime | None = None, until: date | datetime | None = None
) -> EarningsLine:
    """Return what `organization` earned in all."""
    period = Period.of(since, until)
    rows = sums.over_period(_Facet.EARNINGS, organization.pk, period)
    if not rows:
        return EarningsLine(None, None, 0, 0, 0, 0, 0)
    return _line(rows[0], _customers(organization.pk, period))


def balances(organization: Organization) -> Balances:
    """Return what of the organization's earnings is in reserve, payable and owed back."""
    kind = Account.Kind
    found = dict(Account.objects.filter(organization=organization).values_list("kind", "posted"))
    return Balances(
        reserve_nano_usd=found.get(kind.CREATOR_RESERVE, 0),
        payable_nano_usd=found.get(kind.CREATOR_PAYABLE, 0),
        owed_nano_usd=-found.get(kind.RECEIVABLE, 0),
    )


def platform_totals() -> PlatformTotals:
    """Return the sums over all organizations.

    The queue is read before the sums: rows that are added to the sums in between are told as waiting, never left out.
    """
    uncounted = RollupQueue.objects.count()
    rows = sums.over_period(_Facet.PLATFORM, UUID(NO_SUBJECT), Period())
    return PlatformTotals(
        charged=rows[0].charged if rows else 0,
        earned=rows[0].earned if rows else 0,
        predictions=rows[0].predictions if rows else 0,
        uncounted=uncounted,
    )


def _customers(organization_id: UUID, period: Period) -> int:
    """Return how many organizations bought in the period: blocks have customers in common."""
    blocks = Q()
    for block in period.blocks(today=timezone.now().date()):
        blocks |= Q(span=block.days, start=block.start)
    seen = SpanCustomer.objects.filter(blocks, organization_id=organization_id, subject=NO_SUBJECT)
    return int(seen.aggregate(count=Count("customer_id", distinct=True))["count"])


def _line(row: Sums, customers: int | None) -> EarningsLine:
    return EarningsLine(
        day=row.day,
        model_name=row.label or None,
        predictions=row.predictions,
        consumers=customers,
        completion_tokens=row.completion_tokens,
        charged_nano_usd=row.charged,
        creator_nano_usd=row.earned,
        model_id=row.subject if row.label else None,
    )
