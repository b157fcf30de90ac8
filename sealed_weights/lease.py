"""A DEK on loan: from the vault to the key that one replica made in memory at boot.

HPKE X25519 / HKDF-SHA256 / AES-256-GCM, the whole grant bound through `info`; HPKE does not authenticate the sender,
so the vault signs. A lease lives for seconds, hence no post-quantum key exchange.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from sealed_weights.canonical import encode
from sealed_weights.errors import FormatError
from sealed_weights.header import KEY_SIZE
from sealed_weights.signing import verify
from sealed_weights.strict_json import Fields, to_base64
from sealed_weights.wrap import fingerprint, hpke_open

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_FIELDS = frozenset(
    {
        "release_id",
        "replica_id",
        "model_id",
        "version",
        "digest",
        "expires_at",
        "evidence_hash",
        "ciphertext",
        "signature",
    }
)


class ReplicaKeypair:
    """A replica's X25519 key: made in memory at boot, never written anywhere."""

    def __init__(self, key: X25519PrivateKey) -> None:
        """Hold `key`."""
        self._key = key

    @classmethod
    def generate(cls) -> ReplicaKeypair:
        """Make a new key pair."""
        return cls(X25519PrivateKey.generate())

    @classmethod
    def from_private_bytes(cls, private: bytes) -> ReplicaKeypair:
        """Load 32 private bytes (test vectors; a replica generates). Raises `FormatError` for another length."""
        if len(private) != 32:
            raise FormatError("replica key: private key must be 32 bytes")
        return cls(X25519PrivateKey.from_private_bytes(private))

    def public_bytes(self) -> bytes:
        """Return the 32-byte public key."""
        return self._key.public_key().public_bytes_raw()

    def fingerprint(self) -> str:
        """SHA-256 name of the public key, 64 hex digits, as in the release log."""
        return fingerprint(self.public_bytes())

    def hpke_key(self) -> X25519PrivateKey:
        """Return the key as `cryptography` wants it."""
        return self._key


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """The terms of a loan: package, replica, expiry.

    `digest` is the package digest, `expires_at` unix seconds on the vault's clock.
    The replica counts its lease on its own monotonic clock from the moment it asked; `expires_at` is for the record.
    """

    release_id: UUID
    replica_id: UUID
    model_id: UUID
    version: int
    digest: str
    expires_at: int
    evidence_hash: bytes

    def info(self) -> bytes:
        """Return the canonical bytes of every field: the HPKE info, and part of what the vault signs."""
        return encode(
            "intarsia/lease/v1",
            self.release_id,
            self.replica_id,
            self.model_id,
            self.version,
            self.digest,
            self.expires_at,
            self.evidence_hash,
        )


@dataclass(frozen=True, slots=True)
class SealedLease:
    """A grant with its DEK encrypted to the replica, signed by the vault. Safe to carry over any channel."""

    grant: LeaseGrant
    ciphertext: bytes
    signature: bytes

    def to_json(self) -> dict[str, str | int]:
        """Return a flat object of strings and integers, ready for a JSON response."""
        return {
            "release_id": str(self.grant.release_id),
            "replica_id": str(self.grant.replica_id),
            "model_id": str(self.grant.model_id),
            "version": self.grant.version,
            "digest": self.grant.digest,
            "expires_at": self.grant.expires_at,
            "evidence_hash": to_base64(self.grant.evidence_hash),
            "ciphertext": to_base64(self.ciphertext),
            "signature": to_base64(self.signature),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | str | bytes) -> SealedLease:
        """Parse the object (or its JSON text) of `to_json`; raises `FormatError` naming the field."""
        fields = Fields("lease", value, _FIELDS)
        grant = LeaseGrant(
            release_id=fields.uuid("release_id"),
            replica_id=fields.uuid("replica_id"),
            model_id=fields.uuid("model_id"),
            version=fields.integer("version"),
            digest=fields.text("digest"),
            expires_at=fields.integer("expires_at"),
            evidence_hash=fields.base64("evidence_hash"),
        )
        return cls(grant, fields.base64("ciphertext"), fields.base64("signature"))


def seal_lease(
    grant: LeaseGrant, dek: bytes | bytearray, replica_public: bytes, vault_signing_key: Ed25519PrivateKey
) -> SealedLease:
    """Encrypt `dek` to `replica_public` under `grant` and sign. Log the release first. Raises `FormatError`."""
    if len(dek) != KEY_SIZE:
        raise FormatError("dek: must be 32 bytes")
    if len(replica_public) != 32:
        raise FormatError("replica key: public key must be 32 bytes")
    try:
        ciphertext = _SUITE.encrypt(dek, X25519PublicKey.from_public_bytes(replica_public), grant.info())
    except ValueError:
        # A low-order point: the exchange would yield a secret that anyone knows.
        raise FormatError("replica key: not a usable X25519 public key") from None
    return SealedLease(grant, ciphertext, vault_signing_key.sign(_signed_message(grant, ciphertext)))


def open_lease(
    sealed: SealedLease, replica_keypair: ReplicaKeypair, vault_public: bytes | Ed25519PublicKey
) -> bytearray:
    """Verify the vault's signature, then decrypt the DEK. Wipe it after use.

    The caller must still compare the grant with what it asked for (replica, digest). Raises `SignatureError` before any
    decryption, `AuthenticationError` if the lease is for another replica key.
    """
    verify(vault_public, sealed.signature, _signed_message(sealed.grant, sealed.ciphertext), "lease")
    return hpke_open(_SUITE, sealed.ciphertext, replica_keypair.hpke_key(), sealed.grant.info(), "lease")


def _signed_message(grant: LeaseGrant, ciphertext: bytes) -> bytes:
    return encode("intarsia/lease/v1/signature", grant.info(), ciphertext)
