"""The shuffle of a run, by a seed that is committed to before the first call. Pure.

Everything that chance decides follows from the seed, so whoever has it afterwards can check all of it: the hash that
was shown at the start, which model was side A, and on which side of each row it stood.
"""

from __future__ import annotations

import hashlib
import hmac

SEED_BYTES = 32


def commitment(seed: bytes) -> str:
    """Return the SHA-256 of the seed in hex: shown at the start, when the seed itself is not."""
    return hashlib.sha256(seed).hexdigest()


def first_is_a(seed: bytes) -> bool:
    """Return whether the model that was named first is side A."""
    return _bit(seed, "sides")


def a_is_left(seed: bytes, row: int) -> bool:
    """Return whether side A is called first and shown on the left in this row; rows count from 1."""
    return _bit(seed, f"row {row}")


def _bit(seed: bytes, what: str) -> bool:
    return hmac.digest(seed, what.encode(), "sha256")[0] & 1 == 0
