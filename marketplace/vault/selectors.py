"""Reads: which replicas live, who held which key when, the public keys a CLI pins."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import QuerySet
from django.utils import timezone

from marketplace.accounts.models import Organization
from marketplace.catalog.models import Model
from marketplace.vault import keys
from marketplace.vault.errors import ChainBroken
from marketplace.vault.models import EnrolledReplica, PlatformKey, Release, Replica, SigningKey
from sealed_weights import AuthenticationError, ReleaseEntry, SignedCheckpoint, sign_checkpoint, verify_chain
from sealed_weights.strict_json import to_base64

LIVE_SECONDS = 10  # five missed heartbeats: no new work goes there


def live_replicas(base_fingerprint: str | None = None) -> list[Replica]:
    """Return replicas that take new work: heard of within 10 s and not drained, the newest boot first.

    base_fingerprint: those that serve this base alone
    """
    since = timezone.now() - timedelta(seconds=LIVE_SECONDS)
    rows = Replica.objects.filter(gone_at__isnull=True, last_seen_at__gte=since)
    rows = rows.exclude(name__in=EnrolledReplica.objects.filter(drained_at__isnull=False).values("name"))
    if base_fingerprint is not None:
        rows = rows.filter(base_fingerprint=base_fingerprint)
    return list(rows.order_by("-registered_at"))


@dataclass(frozen=True, slots=True)
class PublicKeys:
    """The keys that a creator's CLI pins: `intake` to wrap to (1,216 bytes), `vault` for checkpoints (32 bytes)."""

    intake: bytes
    vault: bytes


def public_keys() -> PublicKeys:
    """Return the platform's current public keys; raises NotBootstrapped."""
    return PublicKeys(keys.intake_public_key(), keys.vault_public_key())


@dataclass(frozen=True, slots=True)
class Custody:
    """The releases to show (newest first) and a signed checkpoint over the creator's whole chain (None if it is
    empty)."""

    releases: list[Release]
    checkpoint: SignedCheckpoint | None
    vault_public_key: bytes


def custody(*, organization: Organization, model: Model | None = None, limit: int = 200) -> Custody:
    """Return the newest releases of `organization`'s keys, of one of its models if given, with replica, version and
    lease loaded. A model of another organization yields no rows."""
    rows = Release.objects.filter(creator=organization).select_related("version__model", "replica", "lease")
    if model is not None:
        rows = rows.filter(version__model=model)
    newest = list(rows.order_by("-sequence")[:limit])
    return Custody(newest, checkpoint(organization=organization), keys.vault_public_key())


def checkpoint(*, organization: Organization) -> SignedCheckpoint | None:
    """Sign the head of a creator's chain as it stands now; None if nothing was ever released."""
    head = Release.objects.filter(creator=organization).order_by("-sequence").first()
    if head is None:
        return None
    private = keys.signing_pair(PlatformKey.Purpose.VAULT).private
    return sign_checkpoint(
        head.sequence, bytes(head.entry_hash), organization.pk, private, signed_at=_database_time_us()
    )


def _database_time_us() -> int:
    """Return unix microseconds: one clock for every process that signs."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        row = cursor.fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    return int(row[0])


def export_chain(*, organization: Organization) -> dict[str, Any]:
    """Return the whole chain as JSON for `intarsia custody verify FILE`: all that an offline check needs."""
    signed = checkpoint(organization=organization)
    last = signed.sequence if signed else 0
    rows = Release.objects.filter(creator=organization, sequence__lte=last).select_related("version")
    return {
        "format": "intarsia/custody/v2",
        "creator_id": str(organization.pk),
        "vault_public_key": to_base64(keys.vault_public_key()),
        "checkpoint": signed.to_json() if signed else None,
        "releases": [entry_of(row).to_json() for row in rows.order_by("sequence").iterator(chunk_size=2000)],
    }


def verify_own_chain(*, organization: Organization) -> int:
    """Recompute a creator's chain from its rows and return how many there are; raises ChainBroken naming the first row
    that does not fit. Finds changes made past the application; only a checkpoint kept elsewhere finds a rewritten
    whole."""
    rows = Release.objects.filter(creator=organization).select_related("version").order_by("sequence")
    entries = []
    for row in rows.iterator(chunk_size=2000):
        entry = entry_of(row)
        if entry.hash() != bytes(row.entry_hash):
            raise ChainBroken(f"release {row.sequence}: its fields do not have the hash stored with it")
        entries.append(entry)
    try:
        verify_chain(entries, checkpoint=None, vault_public=keys.vault_public_key())
    except AuthenticationError as error:
        raise ChainBroken(str(error)) from None
    return len(entries)


def entry_of(row: Release) -> ReleaseEntry:
    """Return the hashed form of a row (with its version loaded)."""
    return ReleaseEntry(
        sequence=row.sequence,
        creator_id=row.creator_id,
        model_id=row.version.model_id,
        version=row.version.number,
        digest=row.digest,
        replica_id=row.holder_id,
        replica_key_fingerprint=row.replica_key_fingerprint,
        purpose=row.purpose,
        released_at=row.released_at_us,
        previous_hash=bytes(row.previous_hash),
    )


def signing_keys_of(*, organization: Organization) -> QuerySet[SigningKey]:
    """Return the organization's signing keys, newest first."""
    return SigningKey.objects.filter(organization=organization).order_by("-created_at", "-id")


def signing_key_of(*, organization: Organization, key_id: UUID) -> SigningKey | None:
    """Return one unrevoked signing key of the organization, or None."""
    return SigningKey.objects.filter(organization=organization, pk=key_id, revoked_at=None).first()
