"""HPKE (RFC 9180) from the creator to the platform, post-quantum because stored wraps must stay closed for years.

Suite: MLKEM768-X25519, HKDF-SHA256, AES-256-GCM, base mode, single shot. HPKE does not authenticate the sender: a wrap
of a wrong key is caught by the package's key commitment, and who uploaded it is the account's business.
"""

from __future__ import annotations

import hashlib
from typing import Any
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

from sealed_weights.canonical import encode
from sealed_weights.errors import AuthenticationError, FormatError
from sealed_weights.header import KEY_SIZE

PRIVATE_SIZE = 64 + 32
PUBLIC_SIZE = 1184 + 32
_SUITE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


def fingerprint(public: bytes) -> str:
    """Name a public key: SHA-256 as 64 hex digits. The CLI pins the platform's."""
    return hashlib.sha256(encode("intarsia/public-key/v1", public)).hexdigest()


class PlatformKeypair:
    """An HPKE key pair that DEKs are wrapped to: the platform's, or a creator's own for recovery."""

    fingerprint = staticmethod(fingerprint)

    def __init__(self, mlkem: MLKEM768PrivateKey, x25519: X25519PrivateKey) -> None:
        """Combine the two private keys."""
        self._mlkem = mlkem
        self._x25519 = x25519

    @classmethod
    def generate(cls) -> PlatformKeypair:
        """Make a new key pair."""
        return cls(MLKEM768PrivateKey.generate(), X25519PrivateKey.generate())

    @classmethod
    def from_private_bytes(cls, private: bytes | bytearray) -> PlatformKeypair:
        """Load the 96 bytes of `private_bytes`; raises `FormatError` for any other length."""
        if len(private) != PRIVATE_SIZE:
            raise FormatError(f"platform key: private key must be {PRIVATE_SIZE} bytes")
        return cls(
            MLKEM768PrivateKey.from_seed_bytes(private[:64]),
            X25519PrivateKey.from_private_bytes(private[64:]),
        )

    def private_bytes(self) -> bytes:
        """Return the 64-byte ML-KEM seed and the 32-byte X25519 key. Secret."""
        return self._mlkem.private_bytes_raw() + self._x25519.private_bytes_raw()

    def public_bytes(self) -> bytes:
        """Return the 1184-byte ML-KEM-768 and 32-byte X25519 public keys."""
        return self._mlkem.public_key().public_bytes_raw() + self._x25519.public_key().public_bytes_raw()

    def hpke_key(self) -> MLKEM768X25519PrivateKey:
        """Return the key as `cryptography` wants it."""
        return MLKEM768X25519PrivateKey(self._mlkem, self._x25519)


def wrap_dek_for_platform(
    dek: bytes | bytearray,
    platform_public: bytes,
    *,
    creator_id: UUID,
    model_id: UUID,
    version: int,
    digest: str,
) -> bytes:
    """Encrypt a version's 32-byte DEK to `platform_public`, bound to exactly this package.

    Returns encapsulation ‖ ciphertext ‖ tag (1168 bytes). Raises `FormatError` for a bad key or DEK.
    """
    if len(dek) != KEY_SIZE:
        raise FormatError("dek: must be 32 bytes")
    info = _info(platform_public, creator_id, model_id, version, digest)
    return _SUITE.encrypt(dek, _load_public(platform_public), info)


def unwrap_dek_from_creator(
    wrapped: bytes,
    keypair: PlatformKeypair,
    *,
    creator_id: UUID,
    model_id: UUID,
    version: int,
    digest: str,
) -> bytearray:
    """Decrypt a DEK wrapped to `keypair` for exactly this package; raises `AuthenticationError` for any other."""
    info = _info(keypair.public_bytes(), creator_id, model_id, version, digest)
    return hpke_open(_SUITE, wrapped, keypair.hpke_key(), info, "wrapped dek")


def hpke_open(suite: Suite, wrapped: bytes, private_key: Any, info: bytes, what: str) -> bytearray:
    """Open a single-shot HPKE message that must hold a 32-byte key; raises `AuthenticationError` naming `what`."""
    try:
        plaintext = suite.decrypt(wrapped, private_key, info)
    except (InvalidTag, ValueError):
        raise AuthenticationError(f"{what}: not for this recipient and context") from None
    if len(plaintext) != KEY_SIZE:
        raise AuthenticationError(f"{what}: must hold a {KEY_SIZE}-byte key")
    return bytearray(plaintext)


def _info(public: bytes, creator_id: UUID, model_id: UUID, version: int, digest: str) -> bytes:
    return encode("intarsia/platform-wrap/v1", fingerprint(public), creator_id, model_id, version, digest)


def _load_public(public: bytes) -> MLKEM768X25519PublicKey:
    if len(public) != PUBLIC_SIZE:
        raise FormatError(f"platform key: public key must be {PUBLIC_SIZE} bytes")
    try:
        return MLKEM768X25519PublicKey(
            MLKEM768PublicKey.from_public_bytes(public[:1184]), X25519PublicKey.from_public_bytes(public[1184:])
        )
    except ValueError:
        raise FormatError("platform key: not a valid ML-KEM-768 and X25519 public key") from None
