"""The audit log: what people and keys decided in an organization's name, row by row, never changed.

An entry names things by ids and short texts; it never holds a secret, a prompt, an answer, a mail address or the name
of an organization, which an erasure could not take out again. Pages and operations say who acts (`acting`), so that
services record acts without handing the actor down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from django.db.models import Q, QuerySet

from marketplace.accounts.models import ApiKey, AuditEntry, Organization, User

Value = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Actor:
    """The one who acts: a person, a key (and the person who made it, if still there), or the platform (neither)."""

    user: User | None = None
    key: ApiKey | None = None
    as_staff: bool = False  # in the platform's name, not as a member


PLATFORM = Actor()
_current: ContextVar[Actor] = ContextVar("audit_actor", default=PLATFORM)


@contextmanager
def acting(actor: Actor) -> Iterator[None]:
    """Name the actor of everything that is recorded within the block."""
    token = _current.set(actor)
    try:
        yield
    finally:
        _current.reset(token)


def set_actor(actor: Actor) -> None:
    """Name the actor for the rest of the `acting` block, at whose begin the caller was not known yet."""
    _current.set(actor)


def current_actor() -> Actor:
    """Return the one who acts here; outside of requests that is the platform."""
    return _current.get()


def record(
    *,
    organization: Organization,
    act: str,
    actor: Actor | None = None,
    subject: str = "",
    data: Mapping[str, Value] | None = None,
) -> AuditEntry:
    """Add an entry in the transaction of the act itself, so that neither is there without the other.

    `act` is `noun.verb`, as in `key.revoked`; `subject` is the name or id of the thing that it was done to. Without an
    `actor`, the one that `acting` named acts; outside of requests that is the platform.
    """
    who = actor or current_actor()
    return AuditEntry.objects.create(
        organization=organization,
        user_id=None if who.user is None else who.user.pk,
        api_key_id=None if who.key is None else who.key.pk,
        as_staff=who.as_staff,
        act=act,
        subject=subject[:200],
        data=dict(data or {}),
    )


@dataclass(frozen=True, slots=True)
class Filters:
    """The part of a log that is asked for."""

    act: str = ""  # `key.revoked`, or `key` for all of its kind
    user_id: UUID | None = None
    since: date | None = None
    until: date | None = None  # this day included


def entries_of(*, organization: Organization, filters: Filters | None = None) -> QuerySet[AuditEntry]:
    """Return the organization's entries, newest first."""
    return _filtered(AuditEntry.objects.filter(organization=organization), filters)


def people_in(*, organization: Organization) -> set[UUID]:
    """Return the ids of the people, staff left out, who act in the organization's log; at most 500."""
    entries = AuditEntry.objects.filter(organization=organization, as_staff=False, user_id__isnull=False)
    found = entries.order_by("user_id").values_list("user_id", flat=True).distinct()[:500]
    return {user_id for user_id in found if user_id is not None}


def staff_entries(*, filters: Filters | None = None) -> QuerySet[AuditEntry]:
    """Return everything that staff decided about any organization, newest first, with the organizations."""
    return _filtered(AuditEntry.objects.filter(as_staff=True).select_related("organization"), filters)


def _filtered(entries: QuerySet[AuditEntry], filters: Filters | None) -> QuerySet[AuditEntry]:
    wanted = filters or Filters()
    if wanted.act:
        entries = entries.filter(Q(act=wanted.act) | Q(act__startswith=f"{wanted.act}."))
    if wanted.user_id is not None:
        entries = entries.filter(user_id=wanted.user_id)
    if wanted.since is not None:
        entries = entries.filter(created_at__gte=midnight(wanted.since))
    if wanted.until is not None:
        entries = entries.filter(created_at__lt=midnight(wanted.until) + timedelta(days=1))
    return entries.order_by("-created_at", "-id")


def midnight(day: date) -> datetime:
    """Return the moment at which the day begins (UTC)."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
