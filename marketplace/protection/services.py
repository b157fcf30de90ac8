"""Writes: the rules of a model, and a creator's answers to its customers."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from marketplace.accounts import audit
from marketplace.accounts.errors import InvalidInput, NotAllowed
from marketplace.accounts.models import Organization
from marketplace.catalog.models import Model
from marketplace.protection.models import MAX_CALLS_PER_DAY, Customer, Measure, Protection


def protect_new_model(model: Model) -> None:
    """Give a new model the rules that it starts with: the creator is told of copiers, and nobody is slowed."""
    Protection.objects.get_or_create(model=model, defaults={"on_copying": Measure.TELL})


@transaction.atomic
def set_protection(*, model: Model, logprobs_open: bool, calls_per_day: int | None, on_copying: str) -> Protection:
    """Replace the rules of a model; they hold within seconds. Raises InvalidInput, and NotAllowed for a bare base."""
    if model.kind == Model.Kind.BASE:
        raise NotAllowed("a bare base has nothing to protect", code="not_an_adapter")
    if on_copying and on_copying not in Measure.values:
        raise InvalidInput(f"must be empty or one of {', '.join(Measure.values)}", field="on_copying")
    if calls_per_day is not None and not 1 <= calls_per_day <= MAX_CALLS_PER_DAY:
        raise InvalidInput(f"must be from 1 to {MAX_CALLS_PER_DAY:,}", field="calls_per_day")
    row, _created = Protection.objects.update_or_create(
        model=model,
        defaults={"logprobs_open": logprobs_open, "calls_per_day": calls_per_day, "on_copying": on_copying},
    )
    rules = {"logprobs_open": logprobs_open, "calls_per_day": calls_per_day, "on_copying": on_copying}
    audit.record(organization=model.organization, act="protection.changed", subject=model.slug, data=rules)
    return row


def ask_for_more(*, model: Model, organization: Organization, calls_per_day: int) -> Customer:
    """Ask the creator for so many calls per day, or to lift a stop. Asked again, the number is replaced.

    Raises InvalidInput, and NotAllowed where no rule limits the organization.
    """
    if not 1 <= calls_per_day <= MAX_CALLS_PER_DAY:
        raise InvalidInput(f"must be from 1 to {MAX_CALLS_PER_DAY:,}", field="calls_per_day")
    row = Customer.objects.filter(model=model, organization=organization, trusted_at=None).first()
    if row is None or not Protection.objects.filter(model=model).exclude(calls_per_day=None, on_copying="").exists():
        raise NotAllowed("nothing limits your calls to this model", code="not_limited")
    Customer.objects.filter(pk=row.pk).update(
        # One message to the creator per request: a number that is corrected is not told again.
        asked_at=row.asked_at or timezone.now(),
        asked_calls_per_day=calls_per_day,
    )
    row.refresh_from_db()
    return row


@transaction.atomic
def answer_customer(*, customer: Customer, answer: str) -> None:
    """Carry out a creator's click: trust, grant (what was asked for), decline, or a measure of `Measure`.

    Raises InvalidInput. A request is answered by each of them.
    """
    changes: dict[str, datetime | int | str | None] = {"asked_at": None, "asked_told_at": None}
    if answer == "trust":
        changes |= {"trusted_at": timezone.now(), "measure": ""}
    elif answer == "grant":
        if customer.asked_calls_per_day is None:
            raise InvalidInput("nothing was asked for", code="nothing_asked")
        changes |= {"granted_calls_per_day": customer.asked_calls_per_day}
        if customer.noticed_at is not None:  # whoever is granted calls is not stopped or slowed any more
            changes |= {"measure": Measure.TELL}
    elif answer in Measure.values:
        changes |= {"measure": answer, "trusted_at": None}
    elif answer != "decline":
        raise InvalidInput("is no answer", field="answer")
    Customer.objects.filter(pk=customer.pk).update(**changes)
    told: dict[str, audit.Value] = {"customer": customer.pk, "answer": answer}
    organization, slug = customer.model.organization, customer.model.slug
    audit.record(organization=organization, act="protection.answered", subject=slug, data=told)


def untold() -> Q:
    """Return the condition of customers of whom a creator has not been told yet."""
    return Q(noticed_at__isnull=False, told_at=None) | Q(asked_at__isnull=False, asked_told_at=None)
