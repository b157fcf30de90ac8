"""The MAC over the fields of a row, as a pure function of its table, its fields and their values.

HMAC-SHA256 over the canonical encoding of all of them, under the domain of row seals: no two rows share an encoding,
and no seal of one table or list of fields is good for another.
"""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.exceptions import PermissionDenied

from marketplace.accounts.errors import NotAllowed
from marketplace.accounts.seals.keys import seal_key
from sealed_weights.canonical import encode

logger = logging.getLogger(__name__)

_DOMAIN = "intarsia/row-seal/v1"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SealBroken(NotAllowed, PermissionDenied):
    """A row that carries authority was not written by the platform, or was changed past it: it counts for nothing.

    To Django it is a PermissionDenied, which ends a sign-in, and answers 403 on a page.
    """

    code = "record_not_authentic"


def seal_of(table: str, fields: Iterable[str], values: Iterable[Any]) -> bytes:
    """Return the 32-byte seal of a row: of its `values`, in the order of `fields`."""
    parts = [part for field, value in zip(fields, values, strict=True) for part in (field, _bytes_of(value))]
    return hmac.digest(seal_key(), encode(_DOMAIN, table, *parts), "sha256")


def require_seal(table: str, fields: Sequence[str], values: Sequence[Any], seal: bytes | memoryview | None) -> None:
    """Raise SealBroken unless `seal` is that of the row. A row without a seal has none."""
    expected = seal_of(table, fields, values)
    if seal is None or not hmac.compare_digest(bytes(seal), expected):
        logger.error("a row of %s is not sealed by this platform: %s", table, _name_of(fields, values))
        raise SealBroken("this record was not made by the platform, or was changed past it; staff must look at it")


def _name_of(fields: Sequence[str], values: Sequence[Any]) -> str:
    """Return what names a row in the log: its ids, and nothing secret."""
    found = (f"{field}={value}" for field, value in zip(fields, values, strict=True) if isinstance(value, UUID | int))
    return " ".join(found)[:500]


def _bytes_of(value: Any) -> bytes:
    """Encode a value with its kind, as PostgreSQL gives it back: an enumeration is its text, a time its microseconds.

    Raises TypeError for a value of another kind.
    """
    match value:
        case None:
            return b"-"
        case bool():
            return b"b1" if value else b"b0"
        case int():
            return b"i%d" % value
        case str():
            return b"s" + str.__str__(value).encode()
        case bytes() | bytearray() | memoryview():
            return b"x" + bytes(value)
        case UUID():
            return b"u" + value.bytes
        case datetime():
            return b"t%d" % ((value - _EPOCH) // timedelta(microseconds=1))
        case list() | tuple() | dict():
            return b"j" + json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    raise TypeError(f"a {type(value).__name__} cannot be sealed")
