"""Ed25519 signatures (RFC 8032): the creator's identity and the one way to verify."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sealed_weights.errors import FormatError, SignatureError

SIGNATURE_SIZE = 64


class CreatorIdentity:
    """A creator's signing key. The private part never leaves the creator's machine."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        """Hold `key`."""
        self._key = key

    @classmethod
    def generate(cls) -> CreatorIdentity:
        """Make a new identity from the operating system's randomness."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_private_bytes(cls, private: bytes | bytearray) -> CreatorIdentity:
        """Load the 32-byte seed written by `private_bytes`; raises `FormatError` for any other length."""
        if len(private) != 32:
            raise FormatError("creator identity: private key must be 32 bytes")
        return cls(Ed25519PrivateKey.from_private_bytes(private))

    def private_bytes(self) -> bytes:
        """Return the 32-byte seed. Secret."""
        return self._key.private_bytes_raw()

    def public_bytes(self) -> bytes:
        """Return the 32-byte public key."""
        return self._key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature of `message`."""
        return self._key.sign(message)


def load_public_key(public: bytes | Ed25519PublicKey) -> Ed25519PublicKey:
    """Load a 32-byte Ed25519 public key; raises `FormatError` if it is not one."""
    if isinstance(public, Ed25519PublicKey):
        return public
    try:
        return Ed25519PublicKey.from_public_bytes(public)
    except ValueError:
        raise FormatError("signing key: public key must be the 32 bytes of an Ed25519 key") from None


def verify(public: bytes | Ed25519PublicKey, signature: bytes, message: bytes, what: str) -> None:
    """Verify `signature` over `message`; raises `SignatureError` naming `what`."""
    try:
        load_public_key(public).verify(signature, message)
    except InvalidSignature:
        raise SignatureError(f"{what}: signature does not verify under the expected key") from None
