"""Row locks of this app; `accounts.locks` states the order of all locks."""

from __future__ import annotations

from uuid import UUID

from django.db import connection

from marketplace.catalog.models import Version
from marketplace.vault.models import CreatorKey, EnrolledReplica, FleetCredential

BOOTSTRAP_LOCK = 0x696E7461  # any fixed number: the name of the advisory lock


def lock_bootstrap() -> None:
    """Let one transaction at a time make the platform's keys; the advisory lock ends with the transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [BOOTSTRAP_LOCK])


def lock_version_of_package(digest: str) -> Version | None:
    """Lock the version whose package this is, with model and base: it cannot change its state meanwhile."""
    versions = Version.objects.select_for_update(of=("self",), no_key=True).select_related("model__base_model")
    return versions.filter(package_digest=digest).first()


def lock_creator_key(organization_id: UUID) -> CreatorKey | None:
    """Lock the creator's key row, which stands for the head of the creator's release chain."""
    return CreatorKey.objects.select_for_update(no_key=True).filter(organization_id=organization_id).first()


def lock_fleet_credential(pool: str) -> FleetCredential | None:
    """Lock a pool: its names are claimed, and its living replicas counted, one after the other."""
    return FleetCredential.objects.select_for_update(of=("self",), no_key=True).filter(pool=pool).first()


def lock_enrolled_replica(name: str) -> EnrolledReplica | None:
    """Lock the enrolment of a replica: its boots register one after the other."""
    return EnrolledReplica.objects.select_for_update(of=("self",), no_key=True).filter(name=name).first()
