"""How bytes become text, and which JSON a signature covers. Standard library only."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Any

from protocol.errors import ProtocolError


def encode_base64url(data: bytes) -> str:
    """Return base64url (RFC 4648 section 5) without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_base64url(text: str) -> bytes:
    """Parse base64url without padding; raises ProtocolError for any other spelling of the same bytes."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ProtocolError("bytes must be base64url without padding") from None
    # Padding, and set bits behind the last byte, would give one value several spellings.
    if encode_base64url(data) != text:
        raise ProtocolError("bytes must be base64url without padding, in its canonical form")
    return data


def body_sha256(body: bytes) -> str:
    """Return base64url(SHA-256(body)): the ticket's claim of the same name."""
    return encode_base64url(hashlib.sha256(body).digest())


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys, no white space and UTF-8 as it is: what a registration's signature covers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
