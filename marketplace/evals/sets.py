"""Sets of rows: their upload, with every check that needs no key. Rows are looked at when a run opens them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from marketplace.accounts.errors import Conflict, InvalidInput, NotAllowed, TooLarge
from marketplace.accounts.locks import lock_organization
from marketplace.catalog import blobs
from marketplace.catalog.blobs import ByteStream
from marketplace.catalog.errors import PackageRefused, StorageUnavailable
from marketplace.catalog.locks import lock_model
from marketplace.catalog.models import Model
from marketplace.evals.locks import lock_set
from marketplace.evals.models import EvalSet
from marketplace.publishing.packages import check_package
from marketplace.publishing.uploads import UPLOAD_LIFETIME
from marketplace.vault.errors import DataKeyRefused
from marketplace.vault.models import SigningKey
from marketplace.vault.rows_keys import accept_rows_key
from protocol.errors import ProtocolError
from protocol.eval_rows import MAX_ROWS, MAX_SET_BYTES, read_scorer
from protocol.names import is_digest
from sealed_weights.header import ROWS_SUITE

State = EvalSet.State

MAX_PACKAGE_SIZE = MAX_SET_BYTES + 2**16  # header, tags and signature beside the rows
MAX_OPEN_UPLOADS = 10
MAX_SETS = 500  # of one model


@transaction.atomic
def start_set(
    *, model: Model, signing_key: SigningKey, package_size: int, rows: int, scorer: Mapping[str, Any]
) -> EvalSet:
    """Open the upload of the model's next set. Raises InvalidInput, TooLarge, Conflict, NotAllowed."""
    if model.kind != Model.Kind.ADAPTER:
        raise Conflict("a base model is not evaluated beside itself", code="not_an_adapter")
    if not 0 < package_size <= MAX_PACKAGE_SIZE:
        raise TooLarge(f"a set may have up to {MAX_SET_BYTES >> 20} MB", code="set_too_large", field="package_size")
    if not 1 <= rows <= MAX_ROWS:
        raise InvalidInput(f"must be from 1 to {MAX_ROWS}", field="rows")
    if signing_key.organization_id != model.organization_id or signing_key.revoked_at is not None:
        raise InvalidInput("not a signing key of this organization", code="unknown_signing_key", field="signing_key_id")
    try:
        wanted = read_scorer(scorer)
    except ProtocolError as error:
        raise InvalidInput(str(error), field="scorer") from None
    lock_organization(model.organization_id)
    lock_model(model.pk)
    open_uploads = EvalSet.objects.filter(organization_id=model.organization_id, state=State.UPLOADING).count()
    newest = EvalSet.objects.filter(model=model).aggregate(newest=Max("number"))["newest"] or 0
    if open_uploads >= MAX_OPEN_UPLOADS or newest >= MAX_SETS:
        raise NotAllowed(
            f"{MAX_OPEN_UPLOADS} uploads of sets may be open, and a model may have {MAX_SETS}", code="too_many_sets"
        )
    return EvalSet.objects.create(
        organization_id=model.organization_id,
        model=model,
        number=newest + 1,
        scorer=msgspec.to_builtins(wanted),
        rows=rows,
        signing_key=signing_key,
        package_size=package_size,
    )


def upload_offset(*, eval_set: EvalSet) -> int:
    """Return bytes of the package that have arrived: where the next chunk must start."""
    return blobs.part_size(eval_set.pk) if eval_set.state == State.UPLOADING else eval_set.package_size


@transaction.atomic
def append_set_chunk(*, eval_set: EvalSet, offset: int, stream: ByteStream, length: int) -> int:
    """Append `length` bytes that start at `offset` and return the offset reached.

    Raises Conflict if the upload is closed, OffsetMismatch with the right offset, TooLarge, StorageUnavailable.
    """
    blobs.require_chunk(length)
    locked = lock_set(eval_set.pk)
    _require_uploading(locked)
    return blobs.append_announced(
        locked.pk, announced=locked.package_size, offset=offset, stream=stream, length=length, code="set_too_large"
    )


def complete_set(*, eval_set: EvalSet, digest: str, wrapped_data_key: bytes) -> EvalSet:
    """Close the upload: check size, signature, digest and header, and take the data key. Idempotent.

    A package that can never become right makes the set `refused` and deletes its bytes; a wrong digest or data key can
    be sent again. Raises InvalidInput, Conflict, PackageRefused, StorageUnavailable.
    """
    if not is_digest(digest):
        raise InvalidInput("must be 64 lower-case hex digits", field="digest")
    if eval_set.package_digest == digest:
        return eval_set
    _require_uploading(eval_set)
    blobs.require_whole(eval_set.pk, announced=eval_set.package_size)
    try:
        found = check_package(
            blobs.part_path(eval_set.pk),
            eval_set.signing_key,
            suites=(ROWS_SUITE,),
            creator_id=eval_set.organization_id,
            model=eval_set.model,
            number=eval_set.number,
        )
    except PackageRefused as refusal:
        refuse_set(eval_set, str(refusal))
        blobs.forget(eval_set.pk)
        raise
    if found != digest:
        raise PackageRefused("the uploaded package has another digest", code="digest_mismatch", field="digest")
    _accept(eval_set, digest, wrapped_data_key)
    eval_set.refresh_from_db()
    return eval_set


def expire_abandoned_sets() -> int:
    """Refuse uploads a day old and delete their bytes, so that they count against no limit; return how many."""
    old = EvalSet.objects.filter(state=State.UPLOADING, created_at__lt=timezone.now() - UPLOAD_LIFETIME)
    expired = list(old.values_list("pk", flat=True)[:100])
    for set_id in expired:
        # One that was completed meanwhile stays.
        if EvalSet.objects.filter(pk=set_id, state=State.UPLOADING).update(
            state=State.REFUSED, refusal="the upload was not completed within 24 hours"
        ):
            blobs.forget(set_id)
    return len(expired)


def refuse_set(eval_set: EvalSet, reason: str) -> None:
    """End a set that breaks a rule; `reason` names the row and the rule, and has no row's text."""
    EvalSet.objects.filter(pk=eval_set.pk).update(state=State.REFUSED, refusal=reason[:300])


def _require_uploading(eval_set: EvalSet) -> None:
    if eval_set.state != State.UPLOADING:
        raise Conflict(f"set {eval_set.number} is {eval_set.state}; start a new one", code="upload_closed")


def _accept(eval_set: EvalSet, digest: str, wrapped_data_key: bytes) -> None:
    """Take the key and store the package, without a lock, then let the set be used."""
    if EvalSet.objects.filter(package_digest=digest).exists():
        raise Conflict("this package is already another set", code="package_known", field="digest")
    try:
        wrapped = accept_rows_key(
            model=eval_set.model,
            number=eval_set.number,
            set_id=eval_set.pk,
            wrapped=wrapped_data_key,
            digest=digest,
        )
    except DataKeyRefused:
        raise PackageRefused(
            "the data key is not wrapped to the platform's key for this package",
            code="wrong_data_key",
            field="wrapped_data_key",
        ) from None
    try:
        blobs.keep(eval_set.pk, digest)
    except StorageUnavailable:
        if not EvalSet.objects.filter(pk=eval_set.pk, package_digest=digest).exists():
            raise
    with transaction.atomic():
        locked = lock_set(eval_set.pk)
        if locked.package_digest == digest:  # completed by another request meanwhile
            return
        _require_uploading(locked)
        EvalSet.objects.filter(pk=locked.pk).update(state=State.READY, package_digest=digest, wrapped_key=wrapped)
        transaction.on_commit(lambda: blobs.discard(locked.pk))
