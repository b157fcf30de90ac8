"""The form of an API key, as pure functions: the async gateway and the ORM side parse and digest keys the same way.

`ik_<prefix>_<secret>`: 12 characters of lower-case base32 that find the row, and at least 32 URL-safe characters that
prove it. Only HMAC-SHA256(pepper, whole key) is stored: the secret has 256 bits, so no slow hash is needed, and the
pepper makes a stolen database useless without the server's environment.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets

PREFIX_LENGTH = 12
_FORM = re.compile(r"ik_([a-z2-7]{12})_[A-Za-z0-9_-]{32,128}")


def generate_api_key() -> str:
    """Return a new key with 60 random bits of prefix and 256 random bits of secret."""
    prefix = base64.b32encode(secrets.token_bytes(8)).decode().lower()[:PREFIX_LENGTH]
    return f"ik_{prefix}_{secrets.token_urlsafe(32)}"


def parse_api_key(text: str) -> str | None:
    """Return the prefix of a well-formed key, or None for anything else."""
    match = _FORM.fullmatch(text)
    return match.group(1) if match else None


def digest_api_key(text: str, pepper: str) -> bytes:
    """Return the 32 bytes stored for a key: HMAC-SHA256 of the whole key under `pepper`."""
    return hmac.new(pepper.encode(), text.encode(), hashlib.sha256).digest()
