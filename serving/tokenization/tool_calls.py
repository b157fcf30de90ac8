"""A parser that finds function calls in generated text, piece by piece, as the model writes them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from serving.tokenization.output import without_surrogates
from serving.tokenization.tools import CLOSE, OPEN

# Models were trained on either name of the arguments: Hermes and Qwen write the first, Llama 3 the second.
_ARGUMENTS = ("arguments", "parameters")
_NAME = r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")'
_HEAD = re.compile(_NAME + rf'\s*,\s*"(?:{"|".join(_ARGUMENTS)})"\s*:\s*(?=\{{)')
_NAMED = re.compile(_NAME + r"\s*(?:,|\}|\Z)")
_BETWEEN = re.compile(r"\s*\}?\s*")
# Fields of a call that say nothing about it.
_IDLE_FIELDS = {"id", "type"}
# An answer that was cut within the opening mark ends with at least this of it.
_SURELY_OPEN = "<tool_"
# A call without a name after this many characters is text.
_MAX_HEAD = 1 << 16


@dataclass(frozen=True, slots=True)
class CallStart:
    """The beginning of the `index`-th call; its arguments follow."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON text of the `index`-th call's arguments."""

    index: int
    text: str


Event = str | CallStart | CallArguments


class ToolCallParser:
    """A parser whose `push` and `finish` return, in order: content (str), starts of calls, pieces of their arguments.

    White space between calls and text is dropped before a call and at the end. A whole text that only looks like a call
    comes out as content, as it is, and so does a call whose fields are not understood. What a cut left of a call is a
    call with what there is of its arguments, or, before its name is complete, nothing: no half of the notation is
    content.

    forced: the text is calls and nothing else, so that whatever is unfinished was cut
    """

    def __init__(self, *, forced: bool) -> None:
        self.calls = 0
        self._forced = forced
        self._state = self._text
        self._buffer = ""
        self._space = ""
        self._scan = _Braces()

    def push(self, text: str) -> list[Event]:
        self._buffer += text
        events: list[Event] = []
        while self._state(events):
            pass
        return events

    def finish(self, *, cut: bool) -> list[Event]:
        """Return what was held back. cut: the text ended at a limit, and not where the model ended it."""
        events: list[Event] = []
        cut = cut or self._forced
        rest, self._buffer = self._buffer, ""
        if self._state == self._head:
            # The call is not closed: the completion was cut, or the model forgot.
            whole = self._whole_call(rest, events)
            closed = _Braces().end(rest) is not None
            if not whole and (closed or not (self._half_call(rest, events) or cut)):
                self._content(OPEN + rest, events)
        elif self._state in (self._more_fields, self._text):
            half_mark = self._state == self._text and cut and (self._forced or rest.startswith(_SURELY_OPEN))
            self._content("" if half_mark else rest, events)
        if self._space and not self.calls and not self._forced:
            events.append(self._space)
        self._space = ""
        return events

    def _text(self, events: list[Event]) -> bool:
        before, found, after = self._buffer.partition(OPEN)
        if found:
            self._content(before, events)
            self._space, self._buffer, self._state = "", after, self._head
            return True
        held = next((n for n in range(min(len(OPEN) - 1, len(before)), 0, -1) if before.endswith(OPEN[:n])), 0)
        cut = len(before) - held
        self._content(before[:cut], events)
        self._buffer = before[cut:]
        return False

    def _head(self, events: list[Event]) -> bool:
        match = _HEAD.match(self._buffer)
        if match:
            events.append(CallStart(self.calls, without_surrogates(json.loads(match[1], strict=False))))
            self._buffer, self._state, self._scan = self._buffer[match.end() :], self._arguments, _Braces()
            return True
        inside, found, after = self._buffer.partition(CLOSE)
        if not found and len(self._buffer) <= _MAX_HEAD:
            return False
        self._state = self._text
        if found and self._whole_call(inside, events):
            self._buffer = after
        else:
            self._content(OPEN + inside + found, events)
            self._buffer = after
        return True

    def _arguments(self, events: list[Event]) -> bool:
        end = self._scan.end(self._buffer)
        piece = self._buffer if end is None else self._buffer[:end]
        if piece:
            events.append(CallArguments(self.calls, piece))
        self._buffer = self._buffer[len(piece) :]
        if end is None:
            return False
        self.calls += 1
        self._state = self._tail
        return True

    def _tail(self, events: list[Event]) -> bool:
        match = _BETWEEN.match(self._buffer)
        if self._buffer.lstrip().startswith(","):
            self._state = self._more_fields
            return True
        rest = self._buffer[match.end() if match else 0 :]
        if rest.startswith(CLOSE):
            self._buffer, self._state = rest[len(CLOSE) :], self._text
            return True
        if CLOSE.startswith(rest):  # also true of an empty rest
            return False
        self._buffer, self._state = rest, self._text
        return True

    def _more_fields(self, events: list[Event]) -> bool:
        """Read what a call says behind its arguments, which have been handed on: it is content, without the mark."""
        inside, found, after = self._buffer.partition(CLOSE)
        if not found and len(self._buffer) <= _MAX_HEAD:
            return False
        try:
            fields = json.loads("{" + inside.strip().removeprefix(","))
        except ValueError:
            fields = None
        if not isinstance(fields, dict) or not fields.keys() <= _IDLE_FIELDS:
            self._content(inside, events)
        self._buffer, self._state = after, self._text
        return True

    def _whole_call(self, text: str, events: list[Event]) -> bool:
        """Parse a call with its fields in another order, or with arguments that are not an object."""
        try:
            call = json.loads(text)
        except (ValueError, RecursionError):
            return False
        if isinstance(call, dict) and call.keys() - _IDLE_FIELDS == {"function"}:
            call = call["function"]  # the form of OpenAI's API
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return False
        given = call.keys() - _IDLE_FIELDS - {"name"}
        if len(given) > 1 or not given <= set(_ARGUMENTS):
            return False
        arguments = call[given.pop()] if given else {}
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        self._call(call["name"], without_surrogates(written), events)
        return True

    def _half_call(self, text: str, events: list[Event]) -> bool:
        """Take a call that ended behind its name, before its arguments."""
        match = _NAMED.match(text)
        if match is None:
            return False
        self._call(json.loads(match[1], strict=False), "", events)
        return True

    def _call(self, name: str, arguments: str, events: list[Event]) -> None:
        events += [CallStart(self.calls, without_surrogates(name)), CallArguments(self.calls, arguments)]
        self.calls += 1

    def _content(self, text: str, events: list[Event]) -> None:
        whole = self._space + text
        shown = whole.rstrip()
        self._space = whole[len(shown) :]
        if shown:
            events.append(shown)


class _Braces:
    """A search for the end of a JSON object in text that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def end(self, text: str) -> int | None:
        """Return the index behind the closing brace, or None when the brace is not in `text`."""
        for index, char in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char == "{":
                self._depth += 1
            elif char == "}":
                self._depth -= 1
                if self._depth == 0:
                    return index + 1
        return None
