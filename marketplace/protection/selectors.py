"""Reads: the rules of a model, and its customers as their creator may see them."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import F, Q, QuerySet
from django.utils import timezone

from marketplace.accounts.models import Organization
from marketplace.catalog.models import Model
from marketplace.protection import policies
from marketplace.protection.models import Customer, Protection
from marketplace.protection.policies import Gate, Rules, Standing

MOST_CUSTOMERS = 50  # on one page, those first of whom there is something to say


@dataclass(frozen=True, slots=True)
class SeenCustomer:
    """A customer under the name by which its creator knows it, with what applies to it."""

    row: Customer
    name: str
    measure: str

    @property
    def evenness_percent(self) -> int | None:
        """Return how evenly its answers came when it was noticed, in percent."""
        permille = self.row.evenness_permille
        return None if permille is None else round(permille / 10)


@dataclass(frozen=True, slots=True)
class OwnStanding:
    """The limits of an organization's own calls of a model, and whether it has asked for more."""

    gate: Gate | None
    stopped: bool
    asked_calls_per_day: int | None

    @property
    def limited(self) -> bool:
        """Return whether there is anything to ask for."""
        return self.gate is not None or self.stopped


def protection_of(model: Model) -> Protection:
    """Return the rules of a model; one without a row gets an unsaved one, without rules."""
    return Protection.objects.filter(model=model).first() or Protection(model=model)


def rules_of(protection: Protection) -> Rules:
    """Return the rules as the policies take them."""
    return Rules(protection.calls_per_day, protection.on_copying)


def standing_of(row: Customer) -> Standing:
    """Return a customer as the policies take it."""
    return Standing(
        first_seen_at=row.first_seen_at,
        trusted=row.trusted_at is not None,
        granted_calls_per_day=row.granted_calls_per_day,
        noticed=row.noticed_at is not None,
        measure=row.measure,
    )


def noted_customers(model: Model) -> QuerySet[Customer]:
    """Return those customers of a model that asked, were noticed, or were answered."""
    told = Q(asked_at__isnull=False) | Q(noticed_at__isnull=False) | Q(granted_calls_per_day__isnull=False)
    return Customer.objects.filter(told | Q(trusted_at__isnull=False), model=model)


def customers_to_see(model: Model) -> list[SeenCustomer]:
    """Return the first of `noted_customers`: requests first, then the newest."""
    rows = noted_customers(model).order_by(
        F("asked_at").asc(nulls_last=True), F("trusted_at").asc(nulls_first=True), F("noticed_at").desc(nulls_last=True)
    )
    rules = rules_of(protection_of(model))
    return [
        SeenCustomer(row, name_of(row), policies.measure_of(rules, standing_of(row))) for row in rows[:MOST_CUSTOMERS]
    ]


def name_of(row: Customer) -> str:
    """Return the pseudonym under which the creator of the model knows a customer."""
    return policies.pseudonym(model_id=row.model_id, organization_id=row.organization_id)


def customer_of(*, model: Model, customer_id: int) -> Customer | None:
    """Return one customer of this model, or None."""
    return Customer.objects.filter(model=model, pk=customer_id).first()


def own_standing(*, model: Model, organization: Organization) -> OwnStanding:
    """Return what limits this organization's calls of a model that it sees."""
    row = Customer.objects.filter(model=model, organization=organization).first()
    rules = rules_of(protection_of(model))
    if organization.pk == model.organization_id or not rules.active:
        return OwnStanding(None, stopped=False, asked_calls_per_day=None)
    now = timezone.now()
    standing = Standing(first_seen_at=now) if row is None else standing_of(row)
    return OwnStanding(
        policies.gate_of(rules, standing, now=now),
        stopped=policies.measure_of(rules, standing) == "stop",
        asked_calls_per_day=None if row is None or row.asked_at is None else row.asked_calls_per_day,
    )
