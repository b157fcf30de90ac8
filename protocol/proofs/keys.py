"""The platform's receipt keys with their history, as published in `/.well-known/intarsia-keys.json`.

A key signs within its time alone. Each later key is endorsed by one before it, so that a reader who saved an earlier
file can tell the platform's next key from a stranger's.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocol.encoding import canonical_json, decode_base64url, encode_base64url
from protocol.errors import ProtocolError
from protocol.messages import Bytes32, Bytes64, Id
from protocol.proofs.errors import ProofRejected

KEYS_FORMAT: Final = "intarsia/keys/v1"
MAX_KEY_FILE_BYTES = 1 << 20
_DOMAIN = "intarsia/receipt-key/v1"

Seconds = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]  # unix time


class PublishedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A public Ed25519 key. It signs from `valid_from` until `valid_until`; null is until the platform says otherwise.

    `endorsement` is the signature of the key `endorsed_by` over `endorsed_message`; the first key has none.
    """

    kid: Id
    public_key: Bytes32
    valid_from: Seconds
    valid_until: Seconds | None
    endorsed_by: Id | None
    endorsement: Bytes64 | None

    def valid_at(self, moment: int) -> bool:
        """Return whether a signature of this time (unix seconds) may be this key's."""
        return self.valid_from <= moment and (self.valid_until is None or moment <= self.valid_until)

    def load(self) -> Ed25519PublicKey:
        """Return the key itself; raises ProofRejected."""
        try:
            return Ed25519PublicKey.from_public_bytes(decode_base64url(self.public_key))
        except (ProtocolError, ValueError):
            raise ProofRejected("key_file", f"the key {self.kid} is no Ed25519 key") from None


class KeyFile(msgspec.Struct, frozen=True, kw_only=True):
    """All receipt keys that the platform ever had, oldest first, as it published them at `published_at`."""

    format: Literal["intarsia/keys/v1"]
    platform: Annotated[str, msgspec.Meta(max_length=300)]
    published_at: Seconds
    keys: Annotated[tuple[PublishedKey, ...], msgspec.Meta(min_length=1, max_length=1000)]

    def key_at(self, kid: str, moment: int) -> Ed25519PublicKey:
        """Return the key `kid` for a signature of the time `moment` (unix seconds); raises ProofRejected."""
        for key in self.keys:
            if key.kid == kid:
                if not key.valid_at(moment):
                    raise ProofRejected("key_not_valid_then", f"the key {kid} was not valid when it signed this")
                return key.load()
        raise ProofRejected("unknown_key", f"the key {kid} is not in this key file: nothing is proven")


def read_key_file(data: bytes) -> KeyFile:
    """Parse a key file and check that every key but the first is endorsed by an earlier one; raises ProofRejected."""
    if len(data) > MAX_KEY_FILE_BYTES:
        raise ProofRejected("key_file", f"a key file has at most {MAX_KEY_FILE_BYTES} bytes")
    try:
        found = msgspec.json.decode(data, type=KeyFile)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProofRejected("key_file", f"this is no key file: {error}") from None
    if len({key.kid for key in found.keys}) != len(found.keys):
        raise ProofRejected("key_file", "the key file names a key twice")
    for place, key in enumerate(found.keys):
        if place:
            _check_endorsement(key, {earlier.kid: earlier for earlier in found.keys[:place]})
    return found


def check_continues(newer: KeyFile, older: KeyFile) -> None:
    """Check that `newer` is a later file of the platform that published `older`; raises ProofRejected.

    Every key of the older file must be there with its time, which may have been ended but never lengthened. That new
    keys are endorsed by earlier ones has been checked when the file was read.
    """
    if [key.kid for key in newer.keys[: len(older.keys)]] != [key.kid for key in older.keys]:
        raise ProofRejected("key_history", "the key file does not begin with the keys that were saved before")
    for before, now in zip(older.keys, newer.keys, strict=False):
        if msgspec.structs.replace(now, valid_until=None) != msgspec.structs.replace(before, valid_until=None):
            raise ProofRejected("key_history", f"the key {before.kid} is not what it was in the saved file")
        ended = before.valid_until
        if ended is not None and (now.valid_until is None or now.valid_until > ended):
            raise ProofRejected("key_history", f"the key {before.kid} is valid for longer than the saved file says")


def endorse(private: Ed25519PrivateKey, *, kid: str, public_key: bytes, valid_from: int) -> bytes:
    """Return the endorsement of a new key by the one before it."""
    return private.sign(endorsed_message(kid, encode_base64url(public_key), valid_from))


def endorsed_message(kid: str, public_key: str, valid_from: int) -> bytes:
    """Return what an endorsement signs: the key, its id, and when it begins (unix seconds)."""
    claims: dict[str, Any] = {"domain": _DOMAIN, "kid": kid, "public_key": public_key, "valid_from": valid_from}
    return canonical_json(claims)


def _check_endorsement(key: PublishedKey, earlier: dict[str, PublishedKey]) -> None:
    if key.endorsed_by is None or key.endorsement is None or key.endorsed_by not in earlier:
        raise ProofRejected("key_history", f"the key {key.kid} is endorsed by no earlier key")
    signer = earlier[key.endorsed_by]
    if not signer.valid_at(key.valid_from):
        raise ProofRejected("key_history", f"the key {key.kid} is endorsed by a key that was not valid then")
    try:
        message = endorsed_message(key.kid, key.public_key, key.valid_from)
        signer.load().verify(decode_base64url(key.endorsement), message)
    except (InvalidSignature, ProtocolError):
        raise ProofRejected("key_history", f"the endorsement of the key {key.kid} does not verify") from None
