"""The messages of docs/protocol.md section 3 as strict structs: unknown fields, wrong types and over-long values are
refused before any code sees them."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from marketplace.vault.errors import BadRequest

MAX_BODY_BYTES = 1 << 20
HexDigest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Key32 = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{43}$")]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class Empty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`{}`"""


class BaseDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base model that a replica serves."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    fingerprint: HexDigest
    config: dict[str, Any]
    context_length: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class Registration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A replica introduces itself. Keys, nonce and signature are base64url without padding."""

    name: Name
    url: Annotated[str, msgspec.Meta(max_length=200)]
    base: BaseDescription
    hpke_public_key: Key32
    receipt_public_key: Key32
    nonce: Key32
    evidence: dict[str, Any]
    signature: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{86}$")]


class Heartbeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A replica is alive and holds these leases."""

    leases: Annotated[list[UUID], msgspec.Meta(max_length=10_000)]
    stats: dict[str, Any]


class LeaseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A replica asks for the key of one package."""

    digest: HexDigest
    purpose: Literal["serve", "verify"]


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys, no white space and UTF-8 as it is: what a registration's signature covers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def encode_bytes(data: bytes) -> str:
    """Return base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_bytes(text: str) -> bytes:
    """Parse base64url without padding; raises BadRequest."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("bytes must be base64url without padding") from None


def check_replica_url(url: str) -> None:
    """Raise BadRequest unless `url` is a plain http(s) origin that the gateway may call."""
    try:
        parts = urlsplit(url)
        fine = (
            parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.username is None
            and parts.path in {"", "/"} and not parts.query and not parts.fragment and (parts.port or 1) > 0
        )  # fmt: skip
    except ValueError:
        fine = False
    if not fine:
        raise BadRequest("url must be http://host:port or https://host:port, without a path")
