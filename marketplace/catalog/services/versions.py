"""A version's life. States move along `Version.NEXT_STATES` only, each step one conditional UPDATE: none is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Max
from django.utils import timezone

from marketplace.accounts.errors import Conflict, InvalidInput, NotAllowed
from marketplace.accounts.models import Organization
from marketplace.catalog.errors import TooLarge
from marketplace.catalog.models import Model, Version
from marketplace.vault import tasks as vault_tasks
from marketplace.vault.models import SigningKey
from sealed_weights.errors import FormatError
from sealed_weights.signing import load_public_key

State = Version.State

MAX_PACKAGE_SIZE = 2**30  # bytes
MAX_OPEN_UPLOADS = 10
MAX_SIGNING_KEYS = 20


def register_signing_key(*, organization: Organization, public_key: bytes) -> SigningKey:
    """Register a creator's 32-byte Ed25519 public key; registering it again returns the same row.

    Raises InvalidInput for bytes that are no key, Conflict if it is another organization's or revoked.
    """
    try:
        load_public_key(public_key)
    except FormatError:
        raise InvalidInput("must be the 32 bytes of an Ed25519 public key", field="public_key") from None
    with transaction.atomic():
        Organization.objects.select_for_update().get(pk=organization.pk)
        key = SigningKey.objects.filter(public_key=public_key).first()
        if key is None:
            if SigningKey.objects.filter(organization=organization, revoked_at=None).count() >= MAX_SIGNING_KEYS:
                raise NotAllowed(f"an organization may have {MAX_SIGNING_KEYS} signing keys", code="too_many_keys")
            try:
                with transaction.atomic():
                    return SigningKey.objects.create(organization=organization, public_key=public_key)
            except IntegrityError:  # another organization registered it in this moment
                key = SigningKey.objects.get(public_key=public_key)
    if key.organization_id != organization.id or key.revoked_at is not None:
        raise Conflict("this key cannot be registered; create a new one", code="key_taken", field="public_key")
    return key


@transaction.atomic
def start_version(*, model: Model, signing_key: SigningKey, package_size: int, changelog: str = "") -> Version:
    """Open an upload as the model's next version number. Raises InvalidInput, TooLarge, Conflict, NotAllowed."""
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
    # One lock order everywhere: organization, model, version.
    Organization.objects.select_for_update().get(pk=model.organization_id)
    open_uploads = Version.objects.filter(model__organization_id=model.organization_id, state=State.UPLOADING).count()
    if open_uploads >= MAX_OPEN_UPLOADS:
        raise NotAllowed(
            f"{MAX_OPEN_UPLOADS} uploads are open; finish one, or wait for the oldest to expire",
            code="too_many_uploads",
        )
    Model.objects.select_for_update().get(pk=model.pk)
    newest = Version.objects.filter(model=model).aggregate(newest=Max("number"))["newest"] or 0
    return Version.objects.create(
        model=model, number=newest + 1, signing_key=signing_key, package_size=package_size, changelog=changelog
    )


def record_verification(*, version: Version, ok: bool, report: Mapping[str, Any]) -> Version:
    """Record what a replica found: `report` holds the facts, or the refusal. A late second answer is ignored."""
    move_version(
        version, State.VERIFIED if ok else State.REFUSED, from_state=State.VERIFYING, report=dict(report), strict=False
    )
    return version


def publish_version(*, version: Version) -> Version:
    """Offer a verified version for sale. Publishing it twice is once. Raises Conflict if unverified or unpriced."""
    if version.state == State.PUBLISHED:
        return version
    if version.state == State.VERIFIED and not version.model.prices.exists():
        raise Conflict("set a price first", code="no_price")
    move_version(version, State.PUBLISHED, published_at=timezone.now())
    return version


@transaction.atomic
def retire_version(*, version: Version) -> Version:
    """Take a version off sale; replicas drop it. Retiring it again only tells them again. Raises Conflict."""
    if version.state != State.RETIRED:
        move_version(version, State.RETIRED)
    _tell_replicas(version)
    return version


@transaction.atomic
def revoke_version(*, version: Version, reason: str) -> Version:
    """Pull the kill switch: replicas refuse, abort and zero it. Revoking again pushes again. Raises Conflict."""
    if version.state != State.REVOKED:
        move_version(version, State.REVOKED, report={**version.report, "revocation": {"reason": reason}})
    _tell_replicas(version)
    return version


def move_version(
    version: Version, to: str, *, from_state: str | None = None, strict: bool = True, **changes: Any
) -> bool:
    """Move `version` to state `to` together with `changes` and refresh it; True if this call moved it.

    One UPDATE guarded by the states that may precede `to` (or `from_state` alone). Raises Conflict when the row is in
    none of them, unless not `strict`.
    """
    before = [state for state, following in Version.NEXT_STATES.items() if to in following]
    if from_state is not None:
        assert from_state in before, f"{from_state} never leads to {to}"
        before = [from_state]
    moved = Version.objects.filter(pk=version.pk, state__in=before).update(
        state=to, state_changed_at=timezone.now(), **changes
    )
    version.refresh_from_db()
    if not moved and strict:
        raise Conflict(f"version {version.number} is {version.state} and cannot become {to}", code="wrong_state")
    return bool(moved)


def _tell_replicas(version: Version) -> None:
    version_id = str(version.id)
    transaction.on_commit(lambda: vault_tasks.push_revocation.delay(version_id))
