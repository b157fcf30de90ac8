"""Every place of a request's body where a caller's text can be, found by a walk that leaves out nothing but two names.

A text that is itself a JSON object or list, such as a call's arguments or a tool's answer, is walked inside: what is
taken out of it then leaves it JSON, whatever its escapes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 100
UNTOUCHED = frozenset({"model", "service_tier"})  # of the body itself: words of ours

Replace = Callable[[str], str]


class Unmaskable(Exception):
    """A place of the body that may hold personal data which cannot be taken out; `field` is the body's field."""

    def __init__(self, message: str, field: str) -> None:
        """Take the sentence that says why."""
        super().__init__(message)
        self.message, self.field = message, field


def rewritten(body: dict[str, Any], replace: Replace) -> dict[str, Any]:
    """Return the body with each text, and each name in an object, replaced.

    Raises Unmaskable for token ids instead of text, for a number that is replaced, and for values nested too deeply.
    """
    for field in ("prompt", "input"):
        if _has_token_ids(body.get(field)):
            raise Unmaskable(f"`{field}` must be text: token ids cannot be searched for personal data.", field)
    return {
        name: value if name in UNTOUCHED else _Walk(name, replace).value(value, depth=0) for name, value in body.items()
    }


def _has_token_ids(prompt: object) -> bool:
    if not isinstance(prompt, list):
        return False
    return any(type(one) is int or (isinstance(one, list) and bool(one)) for one in prompt)


class _Walk:
    """The walk through one field of the body."""

    def __init__(self, field: str, replace: Replace) -> None:
        self._field, self._replace = field, replace

    def value(self, value: Any, depth: int, *, in_text: bool = False) -> Any:
        """Return the value with its texts replaced. `in_text`: it was JSON inside a text, where numbers may change."""
        if depth > MAX_DEPTH:
            raise Unmaskable(f"Values may be nested {MAX_DEPTH} levels deep at most.", self._field)
        if isinstance(value, str):
            return self._text(value, depth)
        if isinstance(value, dict):
            return {self._replace(name): self.value(one, depth + 1, in_text=in_text) for name, one in value.items()}
        if isinstance(value, list):
            return [self.value(one, depth + 1, in_text=in_text) for one in value]
        if type(value) is int and depth:  # a field's own number, such as `seed`, is none of the caller's text
            return self._number(value, in_text=in_text)
        return value

    def _text(self, text: str, depth: int) -> str:
        inside = _json_inside(text)
        if inside is None:
            return self._replace(text)
        found = self.value(inside, depth + 1, in_text=True)
        return text if found == inside else json.dumps(found, ensure_ascii=False)

    def _number(self, number: int, *, in_text: bool) -> int | str:
        text = str(number)
        found = self._replace(text)
        if found == text:
            return number
        if not in_text:
            message = f"`{self._field}` holds a number that is personal data: send it as text."
            raise Unmaskable(message, self._field)
        return found


def _json_inside(text: str) -> Any:
    """Return the object or list that a text is; None for any other text, and for one with a name twice."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, (dict, list)) else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises ValueError if a name is there twice: the value that is overwritten would be missed."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found
