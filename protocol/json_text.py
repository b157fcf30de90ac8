"""JSON text that a grammar of answers admits, read without making values of it: no number or string is too large.

A lone surrogate (`"\\ud800"`), `1e999` and an integer of 5,000 digits are JSON (RFC 8259), which Python's readers
refuse or cannot hold. Gateway and replica judge answers here, so that they never disagree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_SPACE = re.compile(r"[ \t\n\r]*")
_STRING = r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"'
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_SCALAR = re.compile(rf"(?P<string>{_STRING})|(?P<number>{_NUMBER})|true|false|null")

_LONG = 4_000  # digits; Python reads 4,300
Path = tuple[str | int, ...]


class _Fault(Exception):
    """The text is no JSON from here on, or it ends here."""


def is_json(text: str) -> bool:
    """Return whether the text is one JSON value and nothing else but white space."""
    return _Reader(text).whole()


def value_of(text: str) -> Any:
    """Return the value of JSON text; an integer too long for Python is its own text. Raises ValueError."""
    try:
        return json.loads(text, parse_int=_integer, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) < _LONG else digits


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def finished(text: str) -> Iterator[tuple[Path, str]]:
    """Yield every value that a text, or the beginning of one, holds to its end: its path and its own text.

    Paths are of member names and of places in lists; the whole value has the path (). A number at
    the end of the text may go on, and counts as finished all the same only where something follows it.
    """
    return _Reader(text).values()


class _Reader:
    """One pass over a text, with a list of open objects and lists instead of recursion."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def whole(self) -> bool:
        """Return whether one value is all of the text."""
        for path, _ in self.values():
            if not path:
                self._skip()
                return self._at == len(self._text)
        return False

    def values(self) -> Iterator[tuple[Path, str]]:
        """Yield finished values, the inner ones before those that hold them. A fault ends it."""
        path: list[str | int] = []
        begun: list[int] = []
        closers: list[str] = []
        try:
            while True:
                self._skip()
                if (opener := self._peek()) in ("{", "["):
                    begun.append(self._at)
                    closers.append("}" if opener == "{" else "]")
                    self._at += 1
                    if not self._closes(closers[-1]):
                        path.append(self._name() if opener == "{" else 0)
                        continue
                    closers.pop()
                    yield tuple(path), self._text[begun.pop() : self._at]
                else:
                    yield tuple(path), self._scalar(last=not closers)
                while True:  # after a value: the next one beside it, or the end of what holds it
                    if not closers:
                        return
                    self._skip()
                    if self._peek() == ",":
                        self._at += 1
                        last = path.pop()
                        path.append(self._name() if isinstance(last, str) else last + 1)
                        break
                    if not self._closes(closers[-1]):
                        raise _Fault
                    closers.pop()
                    path.pop()
                    yield tuple(path), self._text[begun.pop() : self._at]
        except _Fault:
            return

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        assert space is not None
        self._at = space.end()

    def _closes(self, closer: str) -> bool:
        self._skip()
        if self._peek() != closer:
            return False
        self._at += 1
        return True

    def _name(self) -> str:
        self._skip()
        name = self._scalar(last=False, only="string")
        self._skip()
        if self._peek() != ":":
            raise _Fault
        self._at += 1
        return str(json.loads(name))

    def _scalar(self, *, last: bool, only: str | None = None) -> str:
        found = _SCALAR.match(self._text, self._at)
        if found is None or (only is not None and found.lastgroup != only):
            raise _Fault
        if found.lastgroup == "number" and found.end() == len(self._text) and not last:
            raise _Fault  # more digits may follow
        self._at = found.end()
        return found.group()
