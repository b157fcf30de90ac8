"""JSON from strangers: bounded, UTF-8, no duplicate keys, no NaN, no deep nesting; and small typed readers."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sealed_weights.errors import FormatError

# How files begin that stand in another file's place: what they are, and what to do.
_FOREIGN = (
    (b"\xef\xbb\xbf", "begins with a byte order mark: save the file as UTF-8 without one"),
    (b"\xff\xfe", "is UTF-16: save the file as UTF-8"),
    (b"\x1f\x8b", "is gzip: unpack the file first"),
    (b"PK\x03\x04", "is zip: unpack the file first"),
    (b"version https://git-lfs", "is a pointer of Git LFS and not the file itself: fetch it with `git lfs pull`"),
)


def foreign_beginning(data: bytes) -> str | None:
    """Return what a file is that stands in another's place, by its first bytes; None where they do not tell."""
    return next((rule for mark, rule in _FOREIGN if data.startswith(mark)), None)


class JsonRuleError(ValueError):
    """A rule of strict JSON is broken; the message is the rule."""


def parse_object(data: bytes, max_bytes: int) -> dict[str, Any]:
    """Parse a JSON object of at most `max_bytes`; raises `JsonRuleError` with the rule that it breaks."""
    if len(data) > max_bytes:
        raise JsonRuleError(f"must be at most {max_bytes} bytes")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except JsonRuleError:
        raise
    except UnicodeDecodeError:
        raise JsonRuleError(foreign_beginning(data) or "must be UTF-8") from None
    except RecursionError:
        raise JsonRuleError("must not be nested this deeply") from None
    except ValueError:
        raise JsonRuleError(foreign_beginning(data) or "must be valid JSON") from None
    if not isinstance(value, dict):
        raise JsonRuleError("must be a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise JsonRuleError(f"must not repeat the key {key[:100]!r}")
        found[key] = value
    return found


def _refuse_constant(name: str) -> Any:
    raise JsonRuleError(f"must not contain {name}")


class Fields:
    """Typed access to the exact fields of a JSON object; every refusal is a `FormatError` naming the field."""

    def __init__(self, what: str, value: Mapping[str, Any] | str | bytes, names: frozenset[str]) -> None:
        """Accept a parsed object or its JSON text, with exactly the keys `names`."""
        self._what = what
        if isinstance(value, str | bytes):
            try:
                value = parse_object(value.encode() if isinstance(value, str) else value, 1 << 16)
            except JsonRuleError as error:
                raise FormatError(f"{what}: {error}") from None
        if not isinstance(value, Mapping) or value.keys() != names:
            raise FormatError(f"{what}: must have exactly the fields {', '.join(sorted(names))}")
        self._value = value

    def text(self, name: str) -> str:
        """Return a string of at most 1,000 characters."""
        value = self._value[name]
        if not isinstance(value, str) or len(value) > 1000:
            raise FormatError(f"{self._what} {name}: must be a short string")
        return value

    def integer(self, name: str) -> int:
        """Return an integer that fits u64."""
        value = self._value[name]
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**64:
            raise FormatError(f"{self._what} {name}: must be an unsigned 64-bit integer")
        return value

    def uuid(self, name: str) -> UUID:
        """Return a UUID in its usual text form."""
        try:
            return UUID(self.text(name))
        except ValueError:
            raise FormatError(f"{self._what} {name}: must be a UUID") from None

    def base64(self, name: str) -> bytes:
        """Return bytes in standard base64."""
        try:
            return base64.b64decode(self.text(name), validate=True)
        except (binascii.Error, ValueError):
            raise FormatError(f"{self._what} {name}: must be base64") from None


def to_base64(data: bytes) -> str:
    """Return standard base64 text."""
    return base64.b64encode(data).decode()
