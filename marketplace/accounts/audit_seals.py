"""Seals of the audit log: a changed, removed or added entry of a sealed day no longer fits its seal.

    day     = SHA-256(canonical JSON of each entry of the day, in the order of ids, one a line)
    seal(n) = SHA-256("intarsia/audit/v1" ‖ organization ‖ day of n ‖ seal(n − 1) ‖ day)

The platform's chain has, for its days, the seals of all organizations in the order of their ids. A copy of a seal
(`GET audit/seals`), kept elsewhere, shows whether the log before it was rewritten, the seals included.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta

from django.db import transaction
from django.db.models import Min, QuerySet
from django.utils import timezone

from marketplace.accounts.audit import midnight
from marketplace.accounts.locks import lock_audit_seals
from marketplace.accounts.models import AuditEntry, AuditSeal, Organization

FORMAT = b"intarsia/audit/v1\0"
FIRST = bytes(32)  # before the first seal
# A transaction that began yesterday may still add an entry of yesterday.
SETTLED_AFTER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Break:
    """A day that does not fit its seal; `organization_id` is None in the platform's chain."""

    organization_id: str | None
    day: date


def seal_days() -> int:
    """Seal each day that is over and not sealed yet; return the number of new seals. Idempotent."""
    with transaction.atomic():
        lock_audit_seals()
        last = AuditSeal.objects.filter(organization=None).order_by("-day").values_list("day", flat=True).first()
        first = AuditEntry.objects.aggregate(first=Min("created_at"))["first"]
        if last is None and first is None:
            return 0
        day = last + timedelta(days=1) if last else first.date()
        end = (timezone.now() - SETTLED_AFTER).date()  # this day is not over
        made = 0
        while day < end:
            made += _seal(day)
            day += timedelta(days=1)
        return made


def verify(*, organization: Organization | None = None) -> list[Break]:
    """Compute an organization's chain again, or with None every chain; return the days that do not fit their seals."""
    if organization is not None:
        return _verify_one(organization)
    sealed = Organization.objects.filter(audit_seals__isnull=False).distinct().order_by("pk")
    found = [one for row in sealed.iterator() for one in _verify_one(row)]
    previous, expected = FIRST, None
    for seal in seals_of(organization=None).order_by("day"):
        is_gap = expected is not None and seal.day != expected
        if is_gap or bytes(seal.digest) != _digest(None, seal.day, previous, _seals_on(seal.day)):
            found.append(Break(None, seal.day))
        previous, expected = bytes(seal.digest), seal.day + timedelta(days=1)
    return found


def seals_of(*, organization: Organization | None) -> QuerySet[AuditSeal]:
    """Return the seals of one chain, newest first."""
    return AuditSeal.objects.filter(organization=organization).order_by("-day")


def _seal(day: date) -> int:
    entries = _entries_on(day)
    organizations = list(entries.order_by("organization_id").values_list("organization_id", flat=True).distinct())
    for organization_id in organizations:
        before = AuditSeal.objects.filter(organization_id=organization_id).order_by("-day").first()
        rows = list(entries.filter(organization_id=organization_id).order_by("pk"))
        digest = _digest(str(organization_id), day, bytes(before.digest) if before else FIRST, map(canonical, rows))
        AuditSeal.objects.create(organization_id=organization_id, day=day, entries=len(rows), digest=digest)
    last = seals_of(organization=None).first()
    digest = _digest(None, day, bytes(last.digest) if last else FIRST, _seals_on(day))
    AuditSeal.objects.create(organization=None, day=day, entries=len(organizations), digest=digest)
    return len(organizations) + 1


def _verify_one(organization: Organization) -> list[Break]:
    """Compare every day until the last seal, so that an entry added on a day that had none shows as well."""
    name, found, previous = str(organization.pk), [], FIRST
    seals = list(seals_of(organization=organization).order_by("day"))
    sealed_until = seals_of(organization=None).values_list("day", flat=True).first()
    days = {seal.day for seal in seals}
    for seal in seals:
        rows = _entries_on(seal.day).filter(organization=organization).order_by("pk")
        if bytes(seal.digest) != _digest(name, seal.day, previous, map(canonical, rows.iterator())):
            found.append(Break(name, seal.day))
        previous = bytes(seal.digest)
    if sealed_until is not None:
        entries = AuditEntry.objects.filter(
            organization=organization, created_at__lt=midnight(sealed_until) + timedelta(days=1)
        )
        written = set(entries.datetimes("created_at", "day"))
        found += [Break(name, moment.date()) for moment in written if moment.date() not in days]
    return sorted(found, key=lambda one: one.day)


def _entries_on(day: date) -> QuerySet[AuditEntry]:
    return AuditEntry.objects.filter(created_at__gte=midnight(day), created_at__lt=midnight(day) + timedelta(days=1))


def _seals_on(day: date) -> Iterable[bytes]:
    seals = AuditSeal.objects.filter(day=day, organization__isnull=False).order_by("organization_id")
    return (f"{seal.organization_id} {bytes(seal.digest).hex()}".encode() for seal in seals)


def _digest(organization: str | None, day: date, previous: bytes, lines: Iterable[bytes]) -> bytes:
    content = hashlib.sha256()
    for line in lines:
        content.update(line + b"\n")
    head = f"{organization or 'platform'} {day.isoformat()}".encode()
    return hashlib.sha256(FORMAT + head + previous + content.digest()).digest()


def canonical(entry: AuditEntry) -> bytes:
    """Return the entry as the seals read it: JSON with sorted names, without spaces."""
    fields = {
        "id": entry.pk,
        "organization_id": str(entry.organization_id),
        "user_id": str(entry.user_id) if entry.user_id else None,
        "api_key_id": str(entry.api_key_id) if entry.api_key_id else None,
        "as_staff": entry.as_staff,
        "act": entry.act,
        "subject": entry.subject,
        "data": entry.data,
        "created_at": entry.created_at.isoformat(timespec="microseconds"),
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
