"""The platform's answers (docs/protocol.md section 3) as structs, and the encodings both sides share."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any
from uuid import UUID

import msgspec

from serving.platform.errors import ProtocolViolation

REGISTRATION_DOMAIN = b"intarsia/replica/v1"


class Challenge(msgspec.Struct, frozen=True):
    """A nonce, base64url."""

    nonce: str


class Registered(msgspec.Struct, frozen=True):
    """This boot's identity towards the platform."""

    replica_id: UUID
    session_token: str
    vault_public_key: str
    ticket_keys: dict[str, str]
    heartbeat_seconds: float
    lease_seconds: float

    def __repr__(self) -> str:
        """Everything but the token."""
        return f"Registered({self.replica_id})"


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    """Seconds left for each lease that goes on, digests withdrawn, the current ticket keys."""

    leases: dict[str, float]
    revoked: list[str]
    ticket_keys: dict[str, str]


class Identity(msgspec.Struct, frozen=True):
    """What the package of a lease must say it is."""

    creator_id: UUID
    model_id: UUID
    version: int


class LeaseAnswer(msgspec.Struct, frozen=True):
    """A sealed lease and what is needed to open its package."""

    lease: dict[str, Any]
    creator_public_key: str
    identity: Identity
    package_size: int


class ErrorBody(msgspec.Struct, frozen=True):
    """The inner part of an error."""

    code: str
    message: str


class ErrorAnswer(msgspec.Struct, frozen=True):
    """`{"error": {"code", "message"}}`"""

    error: ErrorBody


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys, no white space and UTF-8 as it is: what a registration's signature covers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def encode_bytes(data: bytes) -> str:
    """Return base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_bytes(text: str) -> bytes:
    """Parse base64url without padding; raises ProtocolViolation."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ProtocolViolation("the platform sent bytes that are not base64url") from None


def decode_keys(keys: dict[str, str]) -> dict[str, bytes]:
    """Parse {kid: public key}; raises ProtocolViolation unless every key is 32 bytes."""
    decoded = {kid: decode_bytes(text) for kid, text in keys.items()}
    if any(len(key) != 32 for key in decoded.values()):
        raise ProtocolViolation("the platform sent a ticket key that is not 32 bytes long")
    return decoded
