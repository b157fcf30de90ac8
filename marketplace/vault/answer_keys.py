"""Encryption of the answers that are kept for retries (docs/replays.md): one key per customer, wrapped by the root key.

Each answer has a key of its own, derived from the customer's and the prediction's id, so no nonce is ever used twice
under one key however many answers there are. An answer opens for its own prediction alone.
"""

from __future__ import annotations

import os
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from marketplace.accounts.seals import root_key
from sealed_weights import AuthenticationError, generate_key
from sealed_weights.keys import KEY_SIZE

_FORMAT = b"\x01"
_NONCE_BYTES = 12
_DOMAIN = b"intarsia/kept-answer/v1"


class AnswerCipher:
    """Encrypts the kept answers of one customer. About 15 µs and 1 ms per MiB for an answer, no I/O."""

    def __init__(self, key: bytes | bytearray) -> None:
        """Hold the customer's 32-byte key."""
        self._key = key

    def seal(self, prediction_id: UUID, content: bytes) -> bytes:
        """Encrypt an answer: `u8 format = 1 ‖ 12-byte nonce ‖ AES-256-GCM ciphertext ‖ tag`."""
        nonce = os.urandom(_NONCE_BYTES)
        return _FORMAT + nonce + self._cipher(prediction_id).encrypt(nonce, content, _DOMAIN)

    def open(self, prediction_id: UUID, sealed: bytes) -> bytes:
        """Decrypt what `seal` made for this prediction. Raises AuthenticationError for anything else."""
        if sealed[:1] != _FORMAT:
            raise AuthenticationError("kept answer: not in format 1")
        nonce, ciphertext = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            return self._cipher(prediction_id).decrypt(nonce, ciphertext, _DOMAIN)
        except (InvalidTag, ValueError):
            raise AuthenticationError("kept answer: not of this customer and prediction") from None

    def _cipher(self, prediction_id: UUID) -> AESGCM:
        info = _DOMAIN + prediction_id.bytes
        return AESGCM(HKDFExpand(algorithm=SHA256(), length=KEY_SIZE, info=info).derive(bytes(self._key)))


def new_answer_key(organization_id: UUID) -> bytes:
    """Make a customer's key and return it wrapped by the root key, to be stored in `vault_answerkey`."""
    key = generate_key()
    try:
        return root_key().wrap(key, _context(organization_id))
    finally:
        key[:] = bytes(KEY_SIZE)


def open_answer_key(wrapped: bytes, organization_id: UUID) -> AnswerCipher:
    """Unwrap a customer's key; raises AuthenticationError if it is another customer's, or of another root key."""
    return AnswerCipher(root_key().unwrap(wrapped, _context(organization_id)))


def _context(organization_id: UUID) -> dict[str, str]:
    return {"purpose": "kept-answers", "organization_id": str(organization_id)}
