"""The audit log: what people and keys decided in an organization's name, row by row, never changed.

An entry names things by ids and short texts; it never holds a secret, a prompt, an answer or a mail address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import QuerySet

from marketplace.accounts.models import ApiKey, AuditEntry, Organization, User

Value = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Actor:
    """Whoever acts: a person, a key (and the person who made it, if still there), or the platform itself (neither)."""

    user: User | None = None
    key: ApiKey | None = None
    as_staff: bool = False  # in the platform's name, not as a member


PLATFORM = Actor()


def record(
    *, organization: Organization, actor: Actor, act: str, subject: str = "", data: Mapping[str, Value] | None = None
) -> AuditEntry:
    """Add an entry in the transaction of the act itself, so that neither is there without the other.

    `act` is `noun.verb`, as in `key.revoked`; `subject` is the name or id of the thing that it was done to.
    """
    return AuditEntry.objects.create(
        organization=organization,
        user_id=None if actor.user is None else actor.user.pk,
        api_key_id=None if actor.key is None else actor.key.pk,
        as_staff=actor.as_staff,
        act=act,
        subject=subject[:200],
        data=dict(data or {}),
    )


def entries_of(*, organization: Organization) -> QuerySet[AuditEntry]:
    """Return the organization's entries, newest first."""
    return AuditEntry.objects.filter(organization=organization).order_by("-created_at", "-id")
