"""The end of a version, announced: its customers are told, its answers say so, and on its day it is retired.

Its customers are the organizations that called it in the last 30 days, the creator's own left out. Creators never learn
which they are; the platform tells them.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from billing.models import EarningsDay, Usage
from marketplace.accounts import audit
from marketplace.accounts.audit import Actor
from marketplace.accounts.errors import Conflict, InvalidInput
from marketplace.alerts.models import Alert
from marketplace.alerts.services import tell
from marketplace.catalog.locks import lock_model
from marketplace.catalog.models import Version

State = Version.State
ALERT_KIND = "model.ending"
USED_WITHIN = timedelta(days=30)
LEAST_NOTICE = timedelta(days=14)
LEAST_NOTICE_IN_USE = timedelta(days=30)  # of a version that customers called within `USED_WITHIN`
MOST_NOTICE = timedelta(days=730)
LAST_WORD = timedelta(days=7)  # before the end: those who still call it are told once more


def customers_of(version: Version) -> frozenset[UUID]:
    """Return the organizations that called the version lately, but for its creator's own."""
    if not is_in_use(version):
        return frozenset()
    creator_id, since = version.model.organization_id, timezone.now() - USED_WITHIN
    rows = Usage.objects.filter(creator_organization_id=creator_id, created_at__gt=since, version_id=version.pk)
    return frozenset(rows.exclude(organization_id=creator_id).values_list("organization_id", flat=True).distinct())


def is_in_use(version: Version) -> bool:
    """Return whether a customer called the version lately. The sums of days answer most askers: it is not."""
    creator_id, since = version.model.organization_id, timezone.now() - USED_WITHIN
    days = EarningsDay.objects.filter(organization_id=creator_id, day__gte=since.date(), version_id=version.pk)
    if not days.exists():
        return False
    rows = Usage.objects.filter(creator_organization_id=creator_id, created_at__gt=since, version_id=version.pk)
    return rows.exclude(organization_id=creator_id).exists()


def earliest_end(version: Version) -> datetime:
    """Return the first moment at which the version may end, if that is announced now."""
    return timezone.now() + (LEAST_NOTICE_IN_USE if is_in_use(version) else LEAST_NOTICE)


@transaction.atomic
def announce_end(*, version: Version, ends_at: datetime, replacement: Version | None, actor: Actor) -> Version:
    """Announce that the version is retired at `ends_at`, and the version on sale to call instead; again to change it.

    Raises InvalidInput for a time that leaves too little notice or is years away and for another model's replacement,
    Conflict unless both versions are on sale.
    """
    lock_model(version.model_id)
    version.refresh_from_db()
    if version.state != State.PUBLISHED:
        raise Conflict(f"version {version.number} is {version.state}, so it is not for sale", code="wrong_state")
    earliest = earliest_end(version)
    if ends_at < earliest:
        raise InvalidInput(f"must be {earliest:%-d %b %Y, %H:%M} UTC or later", field="ends_at")
    if ends_at > timezone.now() + MOST_NOTICE:
        raise InvalidInput("must be within two years", field="ends_at")
    if replacement is not None and (replacement.model_id != version.model_id or replacement.pk == version.pk):
        raise InvalidInput("must be another version of this model", field="replacement")
    if replacement is not None and replacement.state != State.PUBLISHED:
        raise Conflict(f"version {replacement.number} is not for sale", code="wrong_state", field="replacement")
    version.deprecated_at = version.deprecated_at or timezone.now()
    version.ends_at, version.replacement = ends_at, replacement
    version.save(update_fields=["deprecated_at", "ends_at", "replacement"])
    _record(version, "version.deprecated", actor, ends_at=ends_at.isoformat())
    tell_of_end(version)
    return version


@transaction.atomic
def cancel_end(*, version: Version, actor: Actor) -> Version:
    """Take the announcement back, and tell everybody who was told of it. Raises Conflict without one."""
    lock_model(version.model_id)
    version.refresh_from_db()
    if version.ends_at is None or version.state != State.PUBLISHED:
        raise Conflict(f"no end of version {version.number} is announced", code="not_deprecated")
    name, once = _name(version), _once(version)
    Version.objects.filter(pk=version.pk).update(deprecated_at=None, ends_at=None, replacement=None)
    for organization_id in _told(once):
        tell(
            organization_id=organization_id,
            kind=ALERT_KIND,
            once=f"{once}:cancelled",
            subject=f"{name} stays",
            text=f"Its creator took the announced end of {name} back. Calls to it are answered as before.\n",
            data={"event": "cancelled", "model": version.model.full_name, "version": version.number},
        )
    version.refresh_from_db()
    _record(version, "version.deprecated", actor, cancelled=True)
    return version


@transaction.atomic
def tell_of_end(version: Version) -> int:
    """Tell the customers who were not told of this end yet, and in its last week all once more; return how many."""
    assert version.ends_at is not None
    told = 0
    for once in (_once(version), f"{_once(version)}:last"):
        if once.endswith(":last") and timezone.now() < version.ends_at - LAST_WORD:
            continue
        customers = customers_of(version)
        for organization_id in customers - _told(once, among=customers):
            _tell(version, organization_id, once)
            told += 1
    return told


def _tell(version: Version, organization_id: UUID, once: str) -> None:
    assert version.ends_at is not None
    name, listing = _name(version), version.model.full_name
    ends = f"{version.ends_at:%-d %b %Y, %H:%M} UTC"
    instead = listing if version.replacement is None else f"{listing}@{version.replacement.number}"
    tell(
        organization_id=organization_id,
        kind=ALERT_KIND,
        once=once,
        subject=f"{name} ends on {version.ends_at:%-d %b %Y}",
        text=(
            f"{name}, which your organization called in the last 30 days, ends on {ends}. From then on calls to it are "
            f"refused (403 model_revoked) and cost nothing.\n\nIts creator names {instead} instead. Calls to {listing} "
            f"without a number go on with the model's default version.\n\n"
            f"{settings.ENV.public_url}/models/{listing}#versions\n"
        ),
        data={
            "event": "announced",
            "model": listing,
            "version": version.number,
            "ends_at": version.ends_at.isoformat(),
            "replacement": None if version.replacement is None else version.replacement.number,
        },
    )


def _told(once: str, *, among: frozenset[UUID] | None = None) -> frozenset[UUID]:
    rows = Alert.objects.filter(kind=ALERT_KIND, once=once)
    if among is not None:
        rows = rows.filter(organization_id__in=among)
    return frozenset(rows.values_list("organization_id", flat=True))


def _once(version: Version) -> str:
    assert version.ends_at is not None and version.deprecated_at is not None
    return f"{version.pk}:{int(version.deprecated_at.timestamp())}:{int(version.ends_at.timestamp())}"


def _name(version: Version) -> str:
    return f"{version.model.full_name}@{version.number}"


def _record(version: Version, act: str, actor: Actor, **data: str | bool) -> None:
    audit.record(organization=version.model.organization, actor=actor, act=act, subject=_name(version), data=data)
