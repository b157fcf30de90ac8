"""A version leaves the market: retired, or revoked by the kill switch."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.utils import timezone

from marketplace.accounts import audit
from marketplace.accounts.errors import Conflict
from marketplace.catalog.locks import lock_model
from marketplace.catalog.models import Version
from marketplace.publishing.endings import is_in_use
from marketplace.publishing.models import Review
from marketplace.publishing.reviews import open_reviews, withdraw
from marketplace.publishing.versions import move_version
from marketplace.vault import tasks as vault_tasks

State = Version.State
MOST_AT_ONCE = 100  # ended versions in one round of the task


@transaction.atomic
def retire_version(*, version: Version, by: UUID | None = None, announced: bool = False) -> Version:
    """Take a version off sale; replicas drop it. Retiring it again only tells them again.

    `announced`: its customers were told, and its day has come. Raises Conflict from another state, and for a version on
    sale that customers called lately, whoever can find it: its end is announced first (`endings`).
    """
    if version.state != State.RETIRED:
        lock_model(version.model_id)
        if version.state == State.PUBLISHED and not announced and is_in_use(version):
            raise Conflict(
                f"customers called version {version.number} in the last 30 days: announce its end first", code="in_use"
            )
        move_version(version, State.RETIRED)
        _end_review(version, by)
        _record(version, "version.retired")
    _tell_replicas(version)
    return version


@transaction.atomic
def revoke_version(*, version: Version, reason: str, by: UUID | None = None) -> Version:
    """Pull the kill switch: replicas refuse, abort and zero it. Revoking again pushes again. Raises Conflict."""
    if version.state != State.REVOKED:
        lock_model(version.model_id)
        move_version(version, State.REVOKED, report={**version.report, "revocation": {"reason": reason}})
        _end_review(version, by)
        _record(version, "version.revoked")
    _tell_replicas(version)
    return version


def retire_ended() -> int:
    """Retire the versions whose announced day has come; return how many."""
    due = Version.objects.filter(ends_at__lte=timezone.now(), state__in=(State.PUBLISHED, State.IN_REVIEW))
    retired = 0
    for version in due.select_related("model__organization").order_by("ends_at")[:MOST_AT_ONCE]:
        with transaction.atomic():
            lock_model(version.model_id)
            version.refresh_from_db()
            if version.ends_at is None or version.ends_at > timezone.now() or version.state == State.RETIRED:
                continue
            retire_version(version=version, announced=True)
            retired += 1
    return retired


def _end_review(version: Version, by: UUID | None) -> None:
    withdraw([one for one in open_reviews(version.model, Review.Kind.VERSION) if one.version_id == version.pk], by=by)


def _record(version: Version, act: str) -> None:
    subject = f"{version.model.slug}@{version.number}"
    audit.record(organization=version.model.organization, act=act, subject=subject)


def _tell_replicas(version: Version) -> None:
    version_id = str(version.id)
    transaction.on_commit(lambda: vault_tasks.push_revocation.delay(version_id))
