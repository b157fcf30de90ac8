"""The code that an authenticator app shows (RFC 6238), for the sample member of staff."""

from __future__ import annotations

import base64
import hmac
import time

PERIOD = 30  # seconds for which a code is shown
DIGITS = 6


def totp(secret: str, at: float | None = None) -> str:
    """Return the code of a base32 secret at a time in unix seconds, now unless one is given."""
    counter = int((time.time() if at is None else at) // PERIOD)
    digest = hmac.digest(base64.b32decode(secret), counter.to_bytes(8, "big"), "sha1")
    offset = digest[-1] & 15
    number = int.from_bytes(digest[offset : offset + 4], "big") & 0x7FFFFFFF
    return str(number % 10**DIGITS).zfill(DIGITS)
