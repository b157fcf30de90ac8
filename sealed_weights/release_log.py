"""The release log: one hash-chained row for every key that ever left the vault, one chain for each creator.

Anyone with the rows and the vault's public key can check offline that none was changed, dropped or inserted before the
last signed checkpoint that they saw.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sealed_weights.canonical import encode
from sealed_weights.errors import AuthenticationError
from sealed_weights.signing import verify
from sealed_weights.strict_json import Fields, to_base64

GENESIS_HASH = bytes(32)
FIRST_SEQUENCE = 1

_ENTRY_FIELDS = frozenset(
    {
        "sequence",
        "creator_id",
        "model_id",
        "version",
        "digest",
        "replica_id",
        "replica_key_fingerprint",
        "purpose",
        "released_at",
        "previous_hash",
    }
)
_CHECKPOINT_FIELDS = frozenset({"sequence", "head_hash", "creator_id", "signed_at", "signature"})


@dataclass(frozen=True, slots=True)
class ReleaseEntry:
    """One release. `sequence` counts from 1 within a creator; `released_at` is unix microseconds."""

    sequence: int
    creator_id: UUID
    model_id: UUID
    version: int
    digest: str
    replica_id: UUID
    replica_key_fingerprint: str
    purpose: str
    released_at: int
    previous_hash: bytes

    def hash(self) -> bytes:
        """SHA-256 over the canonical encoding of every field; the next row's `previous_hash`."""
        encoded = encode(
            "intarsia/release/v1",
            self.sequence,
            self.creator_id,
            self.model_id,
            self.version,
            self.digest,
            self.replica_id,
            self.replica_key_fingerprint,
            self.purpose,
            self.released_at,
            self.previous_hash,
        )
        return hashlib.sha256(encoded).digest()

    def to_json(self) -> dict[str, str | int]:
        """Return a flat object of strings and integers, for the creator's export."""
        return {
            "sequence": self.sequence,
            "creator_id": str(self.creator_id),
            "model_id": str(self.model_id),
            "version": self.version,
            "digest": self.digest,
            "replica_id": str(self.replica_id),
            "replica_key_fingerprint": self.replica_key_fingerprint,
            "purpose": self.purpose,
            "released_at": self.released_at,
            "previous_hash": to_base64(self.previous_hash),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | str | bytes) -> ReleaseEntry:
        """Parse the object (or its JSON text) of `to_json`; raises `FormatError` naming the field."""
        fields = Fields("release", value, _ENTRY_FIELDS)
        return cls(
            sequence=fields.integer("sequence"),
            creator_id=fields.uuid("creator_id"),
            model_id=fields.uuid("model_id"),
            version=fields.integer("version"),
            digest=fields.text("digest"),
            replica_id=fields.uuid("replica_id"),
            replica_key_fingerprint=fields.text("replica_key_fingerprint"),
            purpose=fields.text("purpose"),
            released_at=fields.integer("released_at"),
            previous_hash=fields.base64("previous_hash"),
        )


@dataclass(frozen=True, slots=True)
class SignedCheckpoint:
    """The vault's statement that row `sequence`, with hash `head_hash`, was the last of the creator's chain when it was
    signed, at `signed_at` in unix microseconds."""

    sequence: int
    head_hash: bytes
    creator_id: UUID
    signed_at: int
    signature: bytes

    def message(self) -> bytes:
        """Return the message that the vault signs."""
        return encode("intarsia/checkpoint/v2", self.sequence, self.head_hash, self.creator_id, self.signed_at)

    def to_json(self) -> dict[str, str | int]:
        """Return a flat object of strings and integers."""
        return {
            "sequence": self.sequence,
            "head_hash": to_base64(self.head_hash),
            "creator_id": str(self.creator_id),
            "signed_at": self.signed_at,
            "signature": to_base64(self.signature),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | str | bytes) -> SignedCheckpoint:
        """Parse the object (or its JSON text) of `to_json`; raises `FormatError` naming the field."""
        fields = Fields("checkpoint", value, _CHECKPOINT_FIELDS)
        return cls(
            sequence=fields.integer("sequence"),
            head_hash=fields.base64("head_hash"),
            creator_id=fields.uuid("creator_id"),
            signed_at=fields.integer("signed_at"),
            signature=fields.base64("signature"),
        )


def sign_checkpoint(
    sequence: int, head_hash: bytes, creator_id: UUID, key: Ed25519PrivateKey, *, signed_at: int
) -> SignedCheckpoint:
    """Sign that at `signed_at` (unix microseconds) row `sequence`, with hash `head_hash`, was the chain's last."""
    unsigned = SignedCheckpoint(sequence, head_hash, creator_id, signed_at, b"")
    return replace(unsigned, signature=key.sign(unsigned.message()))


def verify_chain(
    entries: Iterable[ReleaseEntry],
    *,
    checkpoint: SignedCheckpoint | None,
    vault_public: bytes | Ed25519PublicKey,
) -> None:
    """Check a creator's whole chain, from sequence 1 on, and that it contains `checkpoint`.

    Raises `SignatureError` for the checkpoint, `AuthenticationError` naming the first broken row. Without a checkpoint
    a chain cut at its end, or rewritten from a row on, still verifies: keep the last checkpoint that you saw.
    """
    if checkpoint is not None:
        verify(vault_public, checkpoint.signature, checkpoint.message(), f"checkpoint {checkpoint.sequence}")
        if checkpoint.sequence < FIRST_SEQUENCE:
            raise AuthenticationError(f"checkpoint {checkpoint.sequence}: names no row, and so proves nothing")
    creator_id = checkpoint.creator_id if checkpoint else None
    previous = GENESIS_HASH
    sequence = FIRST_SEQUENCE - 1
    for entry in entries:
        sequence += 1
        if entry.sequence != sequence:
            raise AuthenticationError(f"release {sequence}: is missing; sequence {entry.sequence} stands in its place")
        creator_id = creator_id or entry.creator_id
        if entry.creator_id != creator_id:
            raise AuthenticationError(f"release {sequence}: creator_id is not the chain's creator")
        if not hmac.compare_digest(entry.previous_hash, previous):
            raise AuthenticationError(f"release {sequence}: previous_hash is not the hash of the row before it")
        previous = entry.hash()
        if checkpoint and checkpoint.sequence == sequence and not hmac.compare_digest(previous, checkpoint.head_hash):
            raise AuthenticationError(f"release {sequence}: its hash is not the one in the signed checkpoint")
    if checkpoint and checkpoint.sequence > sequence:
        raise AuthenticationError(f"release {sequence + 1}: is missing; the checkpoint is at {checkpoint.sequence}")
