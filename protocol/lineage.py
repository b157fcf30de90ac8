"""The sketch of an adapter's weights, by which a copy is known: four groups of 64 numbers, int8.

A verifying replica computes it (`serving.platform.sketch`); the platform keeps it apart and shows it to nobody.
"""

from __future__ import annotations

from protocol.encoding import decode_base64url, encode_base64url
from protocol.errors import ProtocolError

SKETCH_KEY = "sketch"  # of a verification's report
GROUPS = 4  # by the place of a module: q and k, v and o, gate and up, down and the rest
NUMBERS = 64  # of one group
SKETCH_BYTES = GROUPS * NUMBERS


def write_sketch(values: bytes) -> str:
    """Return the sketch as a report carries it."""
    return encode_base64url(values)


def read_sketch(value: object) -> bytes:
    """Return the 256 bytes of a reported sketch. Raises ProtocolError."""
    if not isinstance(value, str) or len(value) > 2 * SKETCH_BYTES:
        raise ProtocolError("the reported sketch is no text of its length")
    values = decode_base64url(value)
    if len(values) != SKETCH_BYTES:
        raise ProtocolError(f"the reported sketch has {len(values)} numbers instead of {SKETCH_BYTES}")
    return values
