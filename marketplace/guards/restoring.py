"""Masked values put back into an answer: at once into a whole one, as early as can be into a stream.

A stream holds text back only while it may be the beginning of a placeholder of this request. Events in which nothing
begins pass as they came. An event whose text is held back counts as not delivered: its token count is that of the last
event after which nothing was held.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import orjson

from marketplace.guards.masking import Mask
from protocol.events import event_data, event_tokens, format_event

Path = tuple[str | int, ...]
_OUTSIDE = "logprobs"  # tokens of the masked text, which stay as the model saw them
_JSON_NAME = "arguments"  # of a call: always JSON
_BEGINS = (b"<", b"\\u003c", b"\\u003C")


class Restorer:
    """Puts the values of one request back into text, as plain text or inside JSON."""

    def __init__(self, mask: Mask) -> None:
        """Prepare the pattern of this request's placeholders."""
        self._mask = mask
        self._names = tuple(mask.values)
        self._pattern = re.compile("|".join(re.escape(name) for name in self._names)) if self._names else None
        self._escaped = {name: json.dumps(value, ensure_ascii=False)[1:-1] for name, value in mask.values.items()}

    def text(self, text: str, path: Path) -> str:
        """Return the text that is at `path` of a choice with its values."""
        if self._pattern is None or "<" not in text:
            return text
        values = self._escaped if self._is_json(path) else self._mask.values
        return self._pattern.sub(lambda match: values[match.group()], text)

    def held(self, text: str) -> int:
        """Return how many characters at the end may be the beginning of a placeholder."""
        at = text.rfind("<")
        if at < 0:
            return 0
        beginning = text[at:]
        is_one = any(name != beginning and name.startswith(beginning) for name in self._names)
        return len(beginning) if is_one else 0

    def answer(self, answer: dict[str, Any]) -> None:
        """Put the values back into a whole answer, in place."""
        for choice in _choices(answer):
            for name, value in choice.items():
                choice[name] = _rewritten(value, (name,), self.text)

    def _is_json(self, path: Path) -> bool:
        return path[-1] == _JSON_NAME or (self._mask.json_answer and path[-1] in ("content", "text"))


class StreamRestorer:
    """Puts the values back into the events of one stream."""

    def __init__(self, mask: Mask) -> None:
        """Start with nothing held back."""
        self._restorer = Restorer(mask)
        self._held: dict[tuple[int, Path], str] = {}
        self._whole = self._seen = 0  # tokens: when nothing was held for the last time, and of the last event
        self._envelope: dict[str, Any] = {}

    def event(self, raw: bytes) -> bytes:
        """Return one event with its values, as it came where nothing begins or was held."""
        tokens = event_tokens(raw)
        self._seen = max(self._seen, tokens or 0)
        data = event_data(raw)
        if data is None or (not self._held and not any(begin in data for begin in _BEGINS)):
            if not self._held:
                self._whole = self._seen
            return raw
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            return raw
        for choice in _choices(event):
            self._choice(choice)
        if isinstance(event, dict):
            self._envelope = {name: value for name, value in event.items() if name not in ("choices", "usage")}
        return self._written(event, tokens)

    def end(self) -> bytes:
        """Return an event with what is still held back; nothing where nothing is."""
        if not self._held:
            return b""
        choices: dict[int, dict[str, Any]] = {}
        for index, path in list(self._held):
            choice = choices.setdefault(index, {"index": index, "finish_reason": None})
            _put(choice, path, self._held.pop((index, path)))
        return self._written({**self._envelope, "choices": list(choices.values())}, self._seen)

    def _written(self, event: Any, tokens: int | None) -> bytes:
        if not self._held:
            self._whole = self._seen
        if tokens is None:
            return b"data: " + orjson.dumps(event) + b"\n\n"
        return format_event(orjson.dumps(event), self._whole)

    def _choice(self, choice: dict[str, Any]) -> None:
        index = choice.get("index")
        index = index if isinstance(index, int) else 0

        def put_back(text: str, path: Path) -> str:
            text = self._held.pop((index, path), "") + text
            kept = self._restorer.held(text)
            if kept:
                self._held[index, path] = text[-kept:]
                text = text[:-kept]
            return self._restorer.text(text, path)

        for name, value in choice.items():
            choice[name] = _rewritten(value, (name,), put_back)
        if choice.get("finish_reason") is not None:
            for key in [key for key in self._held if key[0] == index]:
                _put(choice, key[1], self._held.pop(key))


def _choices(answer: object) -> list[dict[str, Any]]:
    found = answer.get("choices") if isinstance(answer, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _rewritten(value: Any, path: Path, replace: Callable[[str, Path], str]) -> Any:
    """Return the value with its texts replaced; a path has the `index` of a list's items where they say it."""
    if path[-1] == _OUTSIDE:
        return value
    if isinstance(value, str):
        return replace(value, path)
    if isinstance(value, dict):
        return {name: _rewritten(one, (*path, name), replace) for name, one in value.items()}
    if isinstance(value, list):
        return [_rewritten(one, (*path, _index(one, at)), replace) for at, one in enumerate(value)]
    return value


def _index(one: Any, at: int) -> int:
    index = one.get("index") if isinstance(one, dict) else None
    return index if isinstance(index, int) else at


def _put(choice: dict[str, Any], path: Path, text: str) -> None:
    """Append text at a path, and make what is missing on the way."""
    at: Any = choice
    for name, following in itertools.pairwise(path):
        at = _step(at, name, [] if isinstance(following, int) else {})
    last = path[-1]
    at[last] = (at.get(last) or "") + text


def _step(at: Any, name: str | int, empty: Any) -> Any:
    if isinstance(name, str):
        if at.get(name) is None:
            at[name] = empty
        return at[name]
    for one in at:
        if _index(one, -1) == name:
            return one
    at.append({"index": name})
    return at[-1]
