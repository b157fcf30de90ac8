"""The names of those who acted, for the audit log's readers: looked up when it is read, so that an erasure holds."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from marketplace.accounts.models import ApiKey, AuditEntry, User

STAFF = "Intarsia's staff"
PLATFORM = "Intarsia"
FORMER = "a former member"


def names_of(entries: Iterable[AuditEntry], *, for_staff: bool = False) -> dict[int, str]:
    """Return the actor of each entry by the entry's id, in two queries.

    A key is known by its prefix, a person by the e-mail address until it is erased. Staff are one to those they decide
    about; with `for_staff`, each by address.
    """
    rows = list(entries)
    people = dict(User.objects.filter(pk__in={row.user_id for row in rows}, is_active=True).values_list("pk", "email"))
    keys = dict(ApiKey.objects.filter(pk__in={row.api_key_id for row in rows}).values_list("pk", "prefix"))
    return {row.pk: _name(row, people, keys, for_staff=for_staff) for row in rows}


def _name(row: AuditEntry, people: dict[UUID, str], keys: dict[UUID, str], *, for_staff: bool) -> str:
    if row.as_staff and not for_staff:
        return STAFF
    if row.api_key_id is not None:
        return f"key ik_{keys[row.api_key_id]}_…" if row.api_key_id in keys else "a key"
    if row.user_id is not None:
        return people.get(row.user_id, FORMER)
    return PLATFORM
