"""Reads: what is promised, what was kept, and refunds, each asked for by organization."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone

from billing.pricing import BASIS_POINTS
from marketplace.accounts.models import Organization
from marketplace.catalog.models import Model
from marketplace.promises import policy
from marketplace.promises.measuring import next_month
from marketplace.promises.models import Month, Promise, PromiseKind, Refund

MONTHS_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Kept:
    """A month that is over: the bound of then and what was measured; `kept` is None where too few calls say nothing."""

    month: date
    bound: int
    calls: int
    value: int | None
    kept: bool | None
    missed_of_allowed: float = 0.0  # missed calls as a multiple of what the promise allows


@dataclass(frozen=True, slots=True)
class Promised:
    """One promise of a model: the bound now and from the next month on (None: none), and the last months."""

    kind: str
    bound: int | None
    next_bound: int | None
    starts_on: date
    months: tuple[Kept, ...]  # oldest first

    @property
    def changes(self) -> bool:
        return self.bound != self.next_bound


def promise_of_month(model_id: UUID, kind: str, month: date) -> Promise | None:
    """Return the promise in force in a month; one whose bound is null ended before it."""
    rows = Promise.objects.filter(model_id=model_id, kind=kind, starts_on__lte=month)
    return rows.select_related("model__organization").order_by("-starts_on", "-id").first()


def promises_of(*, model: Model) -> list[Promised]:
    """Return each kind of promise that the model has, will have, or had in the last months."""
    this = timezone.now().date().replace(day=1)
    found = []
    for kind in PromiseKind.values:
        now, later = promise_of_month(model.pk, kind, this), promise_of_month(model.pk, kind, next_month(this))
        rows = Month.objects.filter(model=model, kind=kind).select_related("promise").order_by("-month")
        months = tuple(_kept(row) for row in reversed(rows[:MONTHS_SHOWN]))
        promised = Promised(kind, _bound(now), _bound(later), next_month(this), months)
        if promised.bound is not None or promised.next_bound is not None or months:
            found.append(promised)
    return found


def refunds_of(organization: Organization) -> QuerySet[Refund]:
    """Return what `organization` got back as a consumer, newest first."""
    return _shown(Refund.objects.filter(organization=organization))


def refunds_borne(organization: Organization) -> QuerySet[Refund]:
    """Return what went back out of the earnings of `organization`, newest first."""
    return _shown(Refund.objects.filter(bearer=organization))


def _shown(rows: QuerySet[Refund]) -> QuerySet[Refund]:
    paid = rows.filter(paid_at__isnull=False, paid_nano_usd__gt=0)
    return paid.select_related("month__promise", "month__model__organization").order_by("-paid_at", "-id")


def _bound(promise: Promise | None) -> int | None:
    return None if promise is None else promise.bound


def _kept(row: Month) -> Kept:
    bound = row.promise.bound or 0
    if row.calls < policy.LEAST_CALLS:
        return Kept(row.month, bound, row.calls, None, None)
    allowed = policy.allowed_bps(row.kind, bound)  # type: ignore[arg-type]
    missed, room = row.missed * BASIS_POINTS, allowed * row.calls
    return Kept(row.month, bound, row.calls, row.value, missed <= room, missed / room)
