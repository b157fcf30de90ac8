"""The checks of an uploaded package that need no key: signature and header. Versions and sets of rows share them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from marketplace.catalog.errors import PackageRefused
from marketplace.catalog.models import Model
from marketplace.vault.models import SigningKey
from sealed_weights.errors import FormatError, SignatureError
from sealed_weights.header import read_header
from sealed_weights.package import verify_signature


def check_package(
    path: Path, key: SigningKey | None, *, suites: Iterable[int], creator_id: UUID, model: Model, number: int
) -> str:
    """Return the digest of the package at `path`, if `key` signed it and its header says what it is for.

    Raises PackageRefused naming the field.
    """
    if key is None or key.revoked_at is not None:
        raise PackageRefused(
            "the signing key of this upload is revoked", code="signing_key_revoked", field="signing_key"
        )
    try:
        header = read_header(path)
        digest = verify_signature(path, bytes(key.public_key))
    except FormatError as error:
        raise PackageRefused(str(error), code="malformed_package", field="package") from None
    except SignatureError as error:
        raise PackageRefused(str(error), code="wrong_signature", field="package") from None
    if header.suite not in suites:
        raise PackageRefused("header suite: is not that of this kind of upload", code="wrong_header", field="suite")
    expected = (
        ("creator_id", header.creator_id, creator_id),
        ("model_id", header.model_id, model.pk),
        ("version", header.version, number),
        ("base_fingerprint", header.base_fingerprint.hex(), model.base_model.fingerprint),
    )
    for field, found, wanted in expected:
        if found != wanted:
            raise PackageRefused(f"header {field}: must be {wanted}, is {found}", code="wrong_header", field=field)
    return digest
