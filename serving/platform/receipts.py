"""Receipts: what a replica did for one prediction, signed with its per-boot Ed25519 key (docs/protocol.md)."""

from __future__ import annotations

import time
from dataclasses import dataclass

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one prediction. Token counts are exact; times are in milliseconds (ttft_ms is None if no token
    came)."""

    jti: str
    adapter: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: str
    ttft_ms: int | None
    duration_ms: int


class ReceiptSigner:
    """Signs receipts as the replica. The key lives and dies with the process."""

    def __init__(self, base_fingerprint: str) -> None:
        """Make the boot's key; `base_fingerprint` is hex."""
        self._key = Ed25519PrivateKey.generate()
        self._base = base_fingerprint

    def public_bytes(self) -> bytes:
        """Return the 32-byte public key."""
        return self._key.public_key().public_bytes_raw()

    def sign_registration(self, message: bytes) -> bytes:
        """Return the 64-byte signature of a registration message."""
        return self._key.sign(message)

    def sign(self, outcome: Outcome, replica_id: str) -> str:
        """Return the receipt as a JWT. `replica_id` is the id under which the prediction was accepted (the ticket's
        `rid`): the platform finds the public key by it, also after the replica registered anew."""
        claims = {
            "iss": "replica",
            "jti": outcome.jti,
            "adapter": outcome.adapter,
            "base": self._base,
            "prompt_tokens": outcome.prompt_tokens,
            "cached_tokens": outcome.cached_tokens,
            "completion_tokens": outcome.completion_tokens,
            "finish_reason": outcome.finish_reason,
            "ttft_ms": outcome.ttft_ms,
            "duration_ms": outcome.duration_ms,
            "iat": int(time.time()),
        }
        return jwt.encode(claims, self._key, algorithm="EdDSA", headers={"kid": replica_id})
