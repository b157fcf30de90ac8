"""The record of changes of a listing: who changed which fields, when."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime

from marketplace.accounts.audit import Actor, entries_of, record
from marketplace.accounts.models import AuditEntry, User
from marketplace.catalog.models import Model
from marketplace.catalog.services.listings import ListingText
from marketplace.publishing.models import Review

LISTING_CHANGED = "listing.changed"
FIELDS = tuple(one.name for one in fields(ListingText))
MOST_CHANGES = 20


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a listing by somebody: `who` is a mail address of a member, or words for a key."""

    who: str
    fields: tuple[str, ...]
    at: datetime


def note_change(before: Model, waiting: Review | None, actor: Actor) -> None:
    """Write the fields that are others than in `before`, and those that wait for a person, into the audit log."""
    after = Model.objects.select_related("organization").get(pk=before.pk)
    changed = [name for name in FIELDS if getattr(before, name) != getattr(after, name)]
    if not changed and waiting is None:
        return
    record(
        organization=after.organization,
        actor=actor,
        act=LISTING_CHANGED,
        subject=after.full_name,
        data={
            "fields": " ".join(changed),
            "in_review": " ".join(waiting.change) if waiting else "",
            "updated_at": after.updated_at.isoformat(),
        },
    )


def changes_since(model: Model, seen: datetime) -> list[Change]:
    """Return the changes of the listing after its `updated_at` was `seen`, the last one first."""
    rows = entries_of(organization=model.organization).filter(act=LISTING_CHANGED, subject=model.full_name)
    later = [row for row in rows[:MOST_CHANGES] if datetime.fromisoformat(row.data["updated_at"]) > seen]
    people = dict(User.objects.filter(pk__in=[row.user_id for row in later]).values_list("pk", "email"))
    return [
        Change(
            who=_who(row, people.get(row.user_id) if row.user_id else None),
            fields=tuple(row.data["fields"].split()),
            at=row.created_at,
        )
        for row in later
    ]


def _who(row: AuditEntry, person: str | None) -> str:
    if row.as_staff or (row.user_id is None and row.api_key_id is None):
        return "the platform"
    if row.api_key_id is not None:
        return f"an API key of {person}" if person else "an API key"
    return person or "somebody who has left"
