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


# How files begin that are no JSON lines, and what to do with them.
_FOREIGN = (
    (b"\xef\xbb\xbf", "begins with a byte order mark: save the file as UTF-8 without one"),
    (b"\xff\xfe", "begins as UTF-16: save the file as UTF-8"),
    (b"\xfe\xff", "begins as UTF-16: save the file as UTF-8"),
    (b"\x1f\x8b", "begins as gzip: unpack the file first"),
    (b"PK\x03\x04", "begins as zip: unpack the file first"),
    (b"\x28\xb5\x2f\xfd", "begins as zstd: unpack the file first"),
    (b"BZh", "begins as bzip2: unpack the file first"),
    (b"\xfd7zXZ", "begins as xz: unpack the file first"),
    (b"PAR1", "begins as Parquet: save the rows as JSON lines"),
    (b"[", "begins a JSON list: write one JSON object in each line"),
)


def foreign_beginning(line: bytes) -> str | None:
    """Return what a line that is no JSON object begins instead, and what to do; None where nothing tells."""
    return next((rule for mark, rule in _FOREIGN if line.startswith(mark)), None)


def body_sha256(body: bytes) -> str:
    """Return base64url(SHA-256(body)): the ticket's claim of the same name."""
    return encode_base64url(hashlib.sha256(body).digest())


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys, no white space and UTF-8 as it is: what a registration's signature covers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
