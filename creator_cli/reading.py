"""Typed access to the control API's answers, which are parsed at the edge. Unknown fields are ignored: it may grow."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from creator_cli.errors import CliError
from protocol.encoding import decode_base64url
from protocol.errors import ProtocolError

T = TypeVar("T")


class Reader:
    """Typed access to one JSON object of an answer; raises CliError naming the field."""

    def __init__(self, value: Any, what: str) -> None:
        if not isinstance(value, Mapping):
            raise misunderstood(what)
        self._value = value
        self._what = what

    def _get(self, name: str, kind: type[T]) -> T:
        value = self._value.get(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise misunderstood(f"{self._what} {name}")
        return value

    def whole(self) -> dict[str, Any]:
        """Return the object with every field."""
        return dict(self._value)

    def text(self, name: str) -> str:
        """Return a string."""
        return self._get(name, str)

    def integer(self, name: str) -> int:
        """Return an integer."""
        return self._get(name, int)

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        return self._get(name, bool)

    def mapping(self, name: str) -> dict[str, Any]:
        """Return an object."""
        return self._get(name, dict)

    def items(self, name: str) -> list[Any]:
        """Return a list."""
        return self._get(name, list)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the strings of a list."""
        return tuple(item for item in self.items(name) if isinstance(item, str))

    def part(self, name: str) -> Reader:
        """Return a reader of an object."""
        return Reader(self._value.get(name), f"{self._what} {name}")

    def has(self, name: str) -> bool:
        """Return whether the field is present and not null."""
        return self._value.get(name) is not None

    def uuid(self, name: str) -> UUID:
        """Return a UUID."""
        try:
            return UUID(self.text(name))
        except ValueError:
            raise misunderstood(f"{self._what} {name}") from None

    def time(self, name: str) -> datetime:
        """Return a time with its zone."""
        try:
            found = datetime.fromisoformat(self.text(name))
        except ValueError:
            raise misunderstood(f"{self._what} {name}") from None
        if found.tzinfo is None:
            raise misunderstood(f"{self._what} {name}")
        return found

    def data(self, name: str) -> bytes:
        """Bytes in base64 of either alphabet."""
        return decode_base64(self.text(name), f"{self._what} {name}")


def decode_base64(text: str, what: str) -> bytes:
    """Decode base64, URL-safe or not, padded or not; raises CliError naming `what`."""
    try:
        return decode_base64url(text.replace("+", "-").replace("/", "_").rstrip("="))
    except ProtocolError:
        raise misunderstood(what) from None


def misunderstood(what: str) -> CliError:
    """Return the error for an answer that this version cannot read."""
    return CliError(f"the platform's answer is not understood ({what}); you may need a newer intarsia")
