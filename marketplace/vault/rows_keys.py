"""Data keys of sets of rows: taken in like a version's, and released to the platform's own worker for one run."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction

from marketplace.accounts.seals import root_key
from marketplace.catalog.models import Model, Version
from marketplace.vault import keys
from marketplace.vault.errors import UnknownPackage
from marketplace.vault.locks import lock_creator_key
from marketplace.vault.models import Release
from marketplace.vault.services import append_release, take_in_key
from sealed_weights import open_creator_kek, unwrap_key
from sealed_weights.secret_memory import wipe
from sealed_weights.wrap import fingerprint


def accept_rows_key(*, model: Model, number: int, set_id: UUID, wrapped: bytes, digest: str) -> bytes:
    """Return the key of the model's set `number`, whose package is `digest`, wrapped by its creator's key.

    Raises DataKeyRefused if the creator's wrap is not for this platform, creator, model, number and digest.
    """
    return take_in_key(model=model, number=number, wrapped=wrapped, digest=digest, context=_context(set_id, digest))


def release_rows_key(*, version: Version, set_id: UUID, wrapped_key: bytes, digest: str, run_id: UUID) -> bytearray:
    """Return the key of a set for one run with `version`; its row in the release log is committed before.

    The caller wipes it. Raises UnknownPackage, NotBootstrapped. Must not be called inside a transaction.
    """
    holder = fingerprint(keys.intake_public_key())
    with transaction.atomic(durable=True):
        creator_key = lock_creator_key(version.model.organization_id)
        if creator_key is None:
            raise UnknownPackage("the platform holds no key of this set")
        append_release(
            version,
            digest=digest,
            purpose=Release.Purpose.EVAL,
            holder_id=run_id,
            key_fingerprint=holder,
            replica=None,
        )
    kek = open_creator_kek(root_key(), bytes(creator_key.wrapped_key), version.model.organization_id)
    try:
        return unwrap_key(kek, wrapped_key, _context(set_id, digest))
    finally:
        wipe(kek)


def _context(set_id: UUID, digest: str) -> dict[str, str]:
    return {"purpose": "rows-key", "set_id": str(set_id), "digest": digest}
