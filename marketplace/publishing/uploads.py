"""The package of a version: resumable upload, then every check that needs no key, then off to verification."""

from __future__ import annotations

import time
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from marketplace.accounts.errors import Conflict, InvalidInput, NotAllowed, TooLarge
from marketplace.accounts.locks import lock_organization
from marketplace.accounts.suspension import require_not_suspended
from marketplace.accounts.verification import require_verified
from marketplace.catalog import blobs
from marketplace.catalog.blobs import ByteStream
from marketplace.catalog.errors import PackageRefused, StorageUnavailable
from marketplace.catalog.locks import lock_model, lock_version
from marketplace.catalog.models import Model, Version
from marketplace.publishing.packages import check_package
from marketplace.publishing.verification import enqueue_verification
from marketplace.publishing.versions import move_version
from marketplace.vault import services as vault_services
from marketplace.vault.errors import DataKeyRefused
from marketplace.vault.models import SigningKey
from protocol.names import is_digest
from sealed_weights.header import ADAPTER_SUITES

State = Version.State

MAX_PACKAGE_SIZE = 2**30  # bytes
MAX_OPEN_UPLOADS = 10
UPLOAD_LIFETIME = timedelta(hours=24)


@transaction.atomic
def start_version(
    *, model: Model, signing_key: SigningKey, package_size: int, changelog: str = "", by: UUID | None = None
) -> Version:
    """Open an upload as the model's next version number. `by` is the id of the person who pushes.

    Raises EmailUnverified, InvalidInput, TooLarge, Conflict, NotAllowed.
    """
    require_verified(by=by)
    if model.kind != Model.Kind.ADAPTER:
        raise Conflict("a base model has no package to upload", code="not_an_adapter")
    if not 0 < package_size <= MAX_PACKAGE_SIZE:
        raise TooLarge(
            f"a package may have 1 to {MAX_PACKAGE_SIZE} bytes", code="package_too_large", field="package_size"
        )
    if len(changelog) > 10_000:
        raise InvalidInput("at most 10000 characters", field="changelog")
    if signing_key.organization_id != model.organization_id or signing_key.revoked_at is not None:
        raise InvalidInput("not a signing key of this organization", code="unknown_signing_key", field="signing_key")
    lock_organization(model.organization_id)
    require_not_suspended(model.organization_id)
    open_uploads = Version.objects.filter(model__organization_id=model.organization_id, state=State.UPLOADING).count()
    if open_uploads >= MAX_OPEN_UPLOADS:
        raise NotAllowed(
            f"{MAX_OPEN_UPLOADS} uploads are open; finish one, or wait for the oldest to expire",
            code="too_many_uploads",
        )
    lock_model(model.pk)
    newest = Version.objects.filter(model=model).aggregate(newest=Max("number"))["newest"] or 0
    return Version.objects.create(
        model=model, number=newest + 1, signing_key=signing_key, package_size=package_size, changelog=changelog
    )


def upload_offset(*, version: Version) -> int:
    """Return bytes of the package that have arrived: where the next chunk must start."""
    return blobs.part_size(version.id) if version.state == State.UPLOADING else version.package_size


@transaction.atomic
def append_package_chunk(*, version: Version, offset: int, stream: ByteStream, length: int) -> int:
    """Append `length` bytes that start at `offset` and return the offset reached.

    Raises Conflict if the upload is closed, OffsetMismatch with the right offset, TooLarge, StorageUnavailable.
    """
    blobs.require_chunk(length)
    # The row lock makes chunks of one version take turns; it is held for one local write of at most 8 MiB.
    locked = lock_version(version.pk)
    _require_uploading(locked)
    return blobs.append_announced(
        locked.id, announced=locked.package_size, offset=offset, stream=stream, length=length, code="package_too_large"
    )


def complete_version(*, version: Version, digest: str, wrapped_data_key: bytes) -> Version:
    """Close the upload: check size, signature, digest and header, take the data key, and start verification.

    Completing it again with the same digest changes nothing. A package that can never become right (bad signature,
    foreign header) makes the version `refused` and deletes its bytes; a wrong digest or data key can be sent again.
    Raises InvalidInput, Conflict, PackageRefused, StorageUnavailable.
    """
    if not is_digest(digest):
        raise InvalidInput("must be 64 lower-case hex digits", field="digest")
    if version.package_digest == digest:
        return version
    _require_uploading(version)
    blobs.require_whole(version.id, announced=version.package_size)
    # A full part never changes again (no chunk fits), so the long read needs no lock.
    try:
        found = check_package(
            blobs.part_path(version.id),
            version.signing_key,
            suites=ADAPTER_SUITES,
            creator_id=version.model.organization_id,
            model=version.model,
            number=version.number,
        )
    except PackageRefused as refusal:
        _refuse(version, refusal)
        raise
    if found != digest:
        raise PackageRefused("the uploaded package has another digest", code="digest_mismatch", field="digest")
    _accept(version, digest, wrapped_data_key)
    return version


def expire_abandoned_uploads() -> int:
    """Refuse uploads a day old and delete parts that no open upload owns. Returns how many versions expired."""
    expired = 0
    for version in Version.objects.filter(state=State.UPLOADING, created_at__lt=timezone.now() - UPLOAD_LIFETIME):
        refusal = PackageRefused("the upload was not completed within 24 hours", code="upload_expired", field="package")
        expired += _refuse(version, refusal)
    for version_id, written_at in blobs.parts():
        # Young strays may belong to a transaction that is about to commit.
        stray = not Version.objects.filter(pk=version_id, state=State.UPLOADING).exists()
        if stray and time.time() - written_at > UPLOAD_LIFETIME.total_seconds():
            blobs.discard(version_id)
    return expired


def _require_uploading(version: Version) -> None:
    if version.state != State.UPLOADING:
        raise Conflict(f"version {version.number} is {version.state}; start a new version", code="upload_closed")


def _refuse(version: Version, refusal: PackageRefused) -> bool:
    report = {"refusal": {"field": refusal.field, "rule": refusal.code, "message": refusal.message}}
    moved = move_version(version, State.REFUSED, from_state=State.UPLOADING, report=report, strict=False)
    if moved:
        blobs.forget(version.id)
    return moved


def _accept(version: Version, digest: str, wrapped_data_key: bytes) -> None:
    """Take the key, store the package, start verification: no row is locked while the store takes the bytes.

    A crash in between leaves an open upload, which `complete_version` completes at the next try.
    """
    _accept_key(version, digest, wrapped_data_key)
    try:
        blobs.keep(version.id, digest)
    except StorageUnavailable:
        if not Version.objects.filter(pk=version.pk, package_digest=digest).exists():
            raise
    with transaction.atomic():
        locked = lock_version(version.pk)
        if locked.package_digest == digest:  # completed by another request meanwhile
            return
        _require_uploading(locked)
        move_version(version, State.VERIFYING, package_digest=digest)
        version_id = version.id
        transaction.on_commit(lambda: blobs.discard(version_id))
        transaction.on_commit(lambda: enqueue_verification(version_id))


@transaction.atomic
def _accept_key(version: Version, digest: str, wrapped_data_key: bytes) -> None:
    locked = lock_version(version.pk)
    _require_uploading(locked)
    if Version.objects.filter(package_digest=digest).exists():
        raise Conflict("this package is already another version", code="package_known", field="digest")
    try:
        vault_services.accept_data_key(version=locked, wrapped=wrapped_data_key, digest=digest)
    except DataKeyRefused:
        raise PackageRefused(
            "the data key is not wrapped to the platform's key for this package",
            code="wrong_data_key",
            field="wrapped_data_key",
        ) from None
