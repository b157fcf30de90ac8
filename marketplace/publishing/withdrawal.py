"""A version leaves the market: retired, or revoked by the kill switch."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction

from marketplace.accounts import audit
from marketplace.catalog.locks import lock_model
from marketplace.catalog.models import Version
from marketplace.publishing.models import Review
from marketplace.publishing.reviews import open_reviews, withdraw
from marketplace.publishing.versions import move_version
from marketplace.vault import tasks as vault_tasks

State = Version.State


@transaction.atomic
def retire_version(*, version: Version, by: UUID | None = None) -> Version:
    """Take a version off sale; replicas drop it. Retiring it again only tells them again. Raises Conflict."""
    if version.state != State.RETIRED:
        lock_model(version.model_id)
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


def _end_review(version: Version, by: UUID | None) -> None:
    withdraw([one for one in open_reviews(version.model, Review.Kind.VERSION) if one.version_id == version.pk], by=by)


def _record(version: Version, act: str) -> None:
    subject = f"{version.model.slug}@{version.number}"
    audit.record(organization=version.model.organization, act=act, subject=subject)


def _tell_replicas(version: Version) -> None:
    version_id = str(version.id)
    transaction.on_commit(lambda: vault_tasks.push_revocation.delay(version_id))
