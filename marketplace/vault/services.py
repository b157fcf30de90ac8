"""Writes about keys: making the platform's, taking in a creator's data key, lending it to a replica, ending the loan.

A key leaves only after its row in the release log has committed (`release_key`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.db import IntegrityError, transaction
from django.utils import timezone

from marketplace.accounts import audit
from marketplace.accounts.errors import Conflict, InvalidInput, NotAllowed
from marketplace.accounts.locks import lock_organization
from marketplace.accounts.models import Organization
from marketplace.accounts.seals import root_key
from marketplace.catalog.models import Model, Version
from marketplace.vault import keys
from marketplace.vault.attestation import evidence_hash
from marketplace.vault.clearance import require_checkpoint
from marketplace.vault.demand import alarm, require_budget, require_demand
from marketplace.vault.errors import DataKeyRefused, ReleaseDenied, SessionRefused, UnknownPackage, VersionRevoked
from marketplace.vault.locks import lock_bootstrap, lock_creator_key, lock_version_of_package
from marketplace.vault.models import LEASE_LASTS, CreatorKey, DataKey, Lease, PlatformKey, Release, Replica, SigningKey
from marketplace.vault.policies import ENDED_STATES, release_allowed
from protocol.proofs.keys import endorse
from sealed_weights import (
    LeaseGrant,
    PlatformKeypair,
    ReleaseEntry,
    SealedLease,
    SealError,
    create_creator_kek,
    open_creator_kek,
    seal_lease,
    unwrap_dek_from_creator,
    unwrap_key,
    wrap_key,
)
from sealed_weights.errors import FormatError
from sealed_weights.release_log import GENESIS_HASH
from sealed_weights.secret_memory import wipe
from sealed_weights.signing import load_public_key
from sealed_weights.wrap import fingerprint

MAX_SIGNING_KEYS = 20  # of one organization


def bootstrap_platform_keys() -> list[PlatformKey]:
    """Make the intake, ticket, vault and receipt keys that do not exist yet; return the new rows. Safe to run at any
    time, also twice at once."""
    with transaction.atomic():
        lock_bootstrap()
        return [
            _make_platform_key(purpose)
            for purpose in PlatformKey.Purpose.values
            if not PlatformKey.objects.filter(purpose=purpose, retired_at__isnull=True).exists()
        ]


def rotate_receipt_key() -> PlatformKey:
    """Retire the receipt key and return its successor, which it endorses. Raises NotBootstrapped."""
    with transaction.atomic():
        lock_bootstrap()
        retired = keys.current_row(PlatformKey.Purpose.RECEIPT)
        pair = keys.signing_pair(PlatformKey.Purpose.RECEIPT)
        successor = _make_platform_key(PlatformKey.Purpose.RECEIPT)
        successor.endorsed_by = retired
        successor.endorsement = endorse(
            pair.private,
            kid=str(successor.id),
            public_key=bytes(successor.public_key),
            valid_from=keys.first_second(successor),
        )
        successor.save(update_fields=["endorsed_by", "endorsement"])
        retired.retired_at = successor.created_at
        retired.save(update_fields=["retired_at"])
    return successor


def _make_platform_key(purpose: str) -> PlatformKey:
    key_id = uuid.uuid4()
    pair = PlatformKeypair.generate() if purpose == PlatformKey.Purpose.INTAKE else _SigningKeypair()
    private = bytearray(pair.private_bytes())
    try:
        wrapped = root_key().wrap(private, keys.platform_key_context(purpose, key_id))
    finally:
        wipe(private)
    return PlatformKey.objects.create(
        id=key_id, purpose=purpose, public_key=pair.public_bytes(), wrapped_private_key=wrapped
    )


class _SigningKeypair:
    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()

    def private_bytes(self) -> bytes:
        return self._key.private_bytes_raw()

    def public_bytes(self) -> bytes:
        return self._key.public_key().public_bytes_raw()


def accept_data_key(*, version: Version, wrapped: bytes, digest: str) -> DataKey:
    """Take in the data key of `version`, whose package is `digest`: open the creator's HPKE wrap, store the key wrapped
    by the creator's KEK, forget it. Repeating an accepted call changes nothing.

    Raises DataKeyRefused if the wrap is not for this platform, creator, model, version and digest.
    """
    stored = take_in_key(
        model=version.model,
        number=version.number,
        wrapped=wrapped,
        digest=digest,
        context=_data_key_context(version, digest),
    )
    row, _ = DataKey.objects.get_or_create(version=version, defaults={"wrapped_key": stored})
    return row


def take_in_key(*, model: Model, number: int, wrapped: bytes, digest: str, context: Mapping[str, str]) -> bytes:
    """Open a creator's HPKE wrap of a package's key and return the key, wrapped by the creator's own under `context`.

    `number` is that of the package's header. Raises DataKeyRefused.
    """
    dek = _open_intake(model=model, number=number, wrapped=wrapped, digest=digest)
    try:
        kek = _creator_kek(model.organization)
        try:
            return wrap_key(kek, dek, context)
        finally:
            wipe(kek)
    finally:
        wipe(dek)


def _open_intake(*, model: Model, number: int, wrapped: bytes, digest: str) -> bytearray:
    for pair in keys.intake_pairs():
        try:
            return unwrap_dek_from_creator(
                wrapped, pair, creator_id=model.organization_id, model_id=model.pk, version=number, digest=digest
            )
        except SealError:
            continue  # wrapped to an older intake key, or not for us at all
    raise DataKeyRefused(
        "the wrapped key does not open for this package: it must be wrapped to the platform's intake key, for this "
        "creator, model, version and digest"
    )


def _creator_kek(creator: Organization) -> bytearray:
    row = CreatorKey.objects.filter(organization=creator).first()
    if row is None:
        wrapped = create_creator_kek(root_key(), creator.pk)
        row, _ = CreatorKey.objects.get_or_create(organization=creator, defaults={"wrapped_key": wrapped})
    return open_creator_kek(root_key(), bytes(row.wrapped_key), creator.pk)


def _data_key_context(version: Version, digest: str) -> dict[str, str]:
    return {"purpose": "data-key", "version_id": str(version.pk), "digest": digest}


def release_key(*, replica: Replica, digest: str, purpose: str) -> SealedLease:
    """Lend the key of package `digest` to `replica` while its session lives. The release-log row commits before the key
    is touched: if it cannot be written, nothing leaves.

    Raises SessionRefused, UnknownPackage, ReleaseDenied or VersionRevoked (the version's state forbids it), NoDemand
    and ReleaseBudgetSpent (staff are told), WrongBase, NotCleared, NotBootstrapped. Not to be called in a transaction.
    """
    vault_key = keys.signing_pair(PlatformKey.Purpose.VAULT).private
    try:
        release, creator_key, data_key = _record_release(replica, digest, purpose)
    except ReleaseDenied as refusal:
        alarm(replica=replica, digest=digest, refusal=refusal)
        raise
    version = release.version
    grant = LeaseGrant(
        release_id=release.pk,
        replica_id=replica.pk,
        model_id=version.model_id,
        version=version.number,
        digest=digest,
        expires_at=int((timezone.now() + LEASE_LASTS).timestamp()),
        evidence_hash=evidence_hash(replica.evidence),
    )
    kek = open_creator_kek(root_key(), bytes(creator_key.wrapped_key), version.model.organization_id)
    try:
        dek = unwrap_key(kek, bytes(data_key.wrapped_key), _data_key_context(version, digest))
        try:
            return seal_lease(grant, dek, bytes(replica.hpke_public_key), vault_key)
        finally:
            wipe(dek)
    finally:
        wipe(kek)


def _record_release(replica: Replica, digest: str, purpose: str) -> tuple[Release, CreatorKey, DataKey]:
    """Check that the key may leave and commit the row that says so; return it with its lease, and the wrapped keys."""
    with transaction.atomic(durable=True):
        # Both locks are held to the commit: the version's, so that a revocation either sees this lease or stops it;
        # the creator's key row, as the head of the creator's chain.
        version = lock_version_of_package(digest)
        if version is None:
            raise UnknownPackage("no version has this package")
        _check_release(version, replica, purpose)
        # Under the lock of the replica's enrolment, which its revocation takes too.
        if not Replica.objects.filter(pk=replica.pk, gone_at=None).exists():
            raise SessionRefused("this replica's session is over; register again")
        creator_key = lock_creator_key(version.model.organization_id)
        data_key = DataKey.objects.filter(version=version).first()
        if creator_key is None or data_key is None:
            raise UnknownPackage("the platform holds no key of this package")
        release = _append_release(version, replica, purpose)
        Lease.objects.create(release=release)
    return release, creator_key, data_key


def _check_release(version: Version, replica: Replica, purpose: str) -> None:
    if version.state in ENDED_STATES:
        raise VersionRevoked("this version was withdrawn")
    if not release_allowed(version.state, purpose):
        raise ReleaseDenied(f"a version that is {version.state} is not released to {purpose}")
    require_checkpoint(version=version, replica=replica, purpose=purpose)
    require_demand(version=version, replica=replica, purpose=purpose)
    require_budget(replica=replica)


def _append_release(version: Version, replica: Replica, purpose: str) -> Release:
    return append_release(
        version,
        digest=str(version.package_digest),
        purpose=purpose,
        holder_id=replica.pk,
        key_fingerprint=fingerprint(bytes(replica.hpke_public_key)),
        replica=replica,
    )


def append_release(
    version: Version,
    *,
    digest: str,
    purpose: str,
    holder_id: UUID,
    key_fingerprint: str,
    replica: Replica | None,
) -> Release:
    """Append a row to the chain of the version's creator, whose key row the caller has locked (its head).

    `holder_id` is the replica's id, or, without one, that of a run; `key_fingerprint` is of the key that it opens with.
    """
    creator_id = version.model.organization_id
    head = Release.objects.filter(creator_id=creator_id).order_by("-sequence").first()
    entry = ReleaseEntry(
        sequence=head.sequence + 1 if head else 1,
        creator_id=creator_id,
        model_id=version.model_id,
        version=version.number,
        digest=digest,
        replica_id=holder_id,
        replica_key_fingerprint=key_fingerprint,
        purpose=purpose,
        released_at=time.time_ns() // 1000,
        previous_hash=bytes(head.entry_hash) if head else GENESIS_HASH,
    )
    return Release.objects.create(
        creator_id=creator_id,
        sequence=entry.sequence,
        version=version,
        digest=entry.digest,
        replica=replica,
        run_id=None if replica else holder_id,
        replica_key_fingerprint=entry.replica_key_fingerprint,
        purpose=purpose,
        released_at_us=entry.released_at,
        previous_hash=entry.previous_hash,
        entry_hash=entry.hash(),
    )


def revoke_leases(*, version: Version) -> int:
    """End every live lease on `version` and return how many there were; heartbeats no longer renew them.

    The caller has already moved the version to a state that allows no release. `tasks.push_revocation` calls this, then
    tells the replicas; from an open transaction queue that task on commit.
    """
    now = timezone.now()
    return Lease.objects.live(now).filter(release__version=version).update(revoked_at=now)


def register_signing_key(*, organization: Organization, public_key: bytes) -> SigningKey:
    """Register a creator's 32-byte Ed25519 public key; registering it again returns the same row.

    Raises InvalidInput for bytes that are no key, Conflict if it is another organization's or revoked.
    """
    try:
        load_public_key(public_key)
    except FormatError:
        raise InvalidInput("must be the 32 bytes of an Ed25519 public key", field="public_key") from None
    with transaction.atomic():
        lock_organization(organization.pk)
        key = SigningKey.objects.filter(public_key=public_key).first()
        if key is None:
            if SigningKey.objects.filter(organization=organization, revoked_at=None).count() >= MAX_SIGNING_KEYS:
                raise NotAllowed(f"an organization may have {MAX_SIGNING_KEYS} signing keys", code="too_many_keys")
            try:
                with transaction.atomic():
                    made = SigningKey.objects.create(organization=organization, public_key=public_key)
                    audit.record(organization=organization, act="signing_key.registered", subject=str(made.pk))
                    return made
            except IntegrityError:  # another organization registered it in this moment
                key = SigningKey.objects.get(public_key=public_key)
    if key.organization_id != organization.id or key.revoked_at is not None:
        raise Conflict("this key cannot be registered; create a new one", code="key_taken", field="public_key")
    return key
