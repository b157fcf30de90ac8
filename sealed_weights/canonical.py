"""One encoding for everything that is signed, hashed or bound to a key.

`encode(domain, a, b)` is `u32 length ‖ domain ‖ u32 count ‖ (u32 length ‖ field)*`, all integers big-endian. Every
field carries its length, so no two tuples share an encoding, and the domain keeps one purpose from serving another.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from uuid import UUID

Field = bytes | str | int | UUID

_U64_MAX = 2**64 - 1


def encode(domain: str, *fields: Field) -> bytes:
    """Encode `fields` under `domain`: str as UTF-8, int as u64, UUID as its 16 bytes, bytes as they are.

    Raises `ValueError` for an integer outside u64 and `TypeError` for any other type (bool included).
    """
    parts = [_prefixed(domain.encode()), struct.pack(">I", len(fields))]
    parts.extend(_prefixed(_field_bytes(field)) for field in fields)
    return b"".join(parts)


def encode_context(domain: str, context: Mapping[str, str]) -> bytes:
    """Encode a string mapping in key order, as associated data of a key wrap."""
    fields: list[Field] = []
    for key in sorted(context):
        fields += [key, context[key]]
    return encode(domain, *fields)


def _prefixed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _field_bytes(field: Field) -> bytes:
    if isinstance(field, bytes):
        return field
    if isinstance(field, str):
        return field.encode()
    if isinstance(field, UUID):
        return field.bytes
    if isinstance(field, int) and not isinstance(field, bool):
        if not 0 <= field <= _U64_MAX:
            raise ValueError("integer field: must fit an unsigned 64-bit integer")
        return struct.pack(">Q", field)
    raise TypeError(f"cannot encode a {type(field).__name__}")
