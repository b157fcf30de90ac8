"""The events of a streamed response, from those of a streamed chat completion. Pure.

Each item of the output is open until the next one begins or the answer ends, because its status is that of its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson

from marketplace.gateway.responses.items import Item
from marketplace.gateway.responses.output import (
    IN_PROGRESS,
    UNREADABLE,
    Ending,
    call_item,
    ending_of,
    message_item,
    response_of,
    text_part,
)
from marketplace.gateway.responses.request import ResponseRequest
from protocol.errors import ProtocolError
from protocol.events import event_data, format_event


@dataclass
class _Open:
    """The item in progress: a text, or with `call_id` and `name` the arguments of a call."""

    number: int
    call_id: str | None = None
    name: str = ""
    call: int | None = None  # the number of the call in the chat completion
    texts: list[str] = field(default_factory=list)

    def add(self, text: object) -> None:
        """Go on with the text. Raises TypeError for what is none."""
        if not isinstance(text, str):
            raise TypeError("not a text")
        self.texts.append(text)


class ResponseEvents:
    """Writes one response. `response` is the whole one, once it has ended."""

    def __init__(self, request: ResponseRequest, prediction_id: UUID) -> None:
        """Start before the first event."""
        self.response: dict[str, Any] | None = None
        self._request, self._id = request, prediction_id
        self._first: dict[str, Any] | None = None  # event of the chat completion, which says when it was made
        self._output: list[Item] = []
        self._open: _Open | None = None
        self._finish: str | None = None
        self._number = 0
        self._out = bytearray()

    def event(self, raw: bytes) -> bytes:
        """Return the events that one event of the chat completion makes; the one with usage or an error is the end.

        Raises ProtocolError for one that is none of a chat completion.
        """
        data = event_data(raw)
        if data is None:  # `[DONE]`, which a response does not have
            return b""
        try:
            self._read(orjson.loads(data))
        except UNREADABLE as error:
            raise ProtocolError(f"an event is none of a chat completion: {type(error).__name__}") from None
        return self._taken()

    def _read(self, chunk: dict[str, Any]) -> None:
        self._begin(chunk)
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if text := delta.get("content") or delta.get("refusal"):
                self._text(text)
            for call in delta.get("tool_calls") or ():
                self._call(call)
            self._finish = choice.get("finish_reason") or self._finish
        if "error" in chunk:
            self._fail(chunk)
        elif chunk.get("usage"):
            self._complete(chunk)

    def _begin(self, chunk: dict[str, Any]) -> None:
        if self._first is None:
            self._first = {name: chunk[name] for name in ("created", "model") if name in chunk}
            for name in ("response.created", "response.in_progress"):
                self._write(name, response=response_of(self._request, self._id, self._first, [], IN_PROGRESS))

    def _text(self, text: str) -> None:
        if self._open is None or self._open.call_id is not None:
            self._start_text()
        assert self._open is not None
        self._open.add(text)
        at = {"item_id": self._item("in_progress")["id"], "output_index": self._open.number, "content_index": 0}
        self._write("response.output_text.delta", **at, delta=text, logprobs=[])

    def _start_text(self) -> None:
        self._close("completed")
        self._open = _Open(len(self._output))
        item = self._item("in_progress")
        self._write("response.output_item.added", output_index=self._open.number, item=item | {"content": []})
        at = {"item_id": item["id"], "output_index": self._open.number, "content_index": 0}
        self._write("response.content_part.added", **at, part=text_part(""))

    def _call(self, call: dict[str, Any]) -> None:
        function = call.get("function") or {}
        if self._open is None or self._open.call != call.get("index"):
            self._close("completed")
            self._open = _Open(len(self._output), call.get("id") or "", function.get("name") or "", call.get("index"))
            number, item = self._open.number, self._item("in_progress")
            self._write("response.output_item.added", output_index=number, item=item)
        if arguments := function.get("arguments"):
            self._open.add(arguments)
            at = {"item_id": self._item("in_progress")["id"], "output_index": self._open.number}
            self._write("response.function_call_arguments.delta", **at, delta=arguments)

    def _item(self, status: str) -> Item:
        """Return the open item as it stands."""
        one = self._open
        assert one is not None
        text = "".join(one.texts) if status != "in_progress" else ""
        if one.call_id is None:
            return message_item(self._id, one.number, text, status)
        return call_item(self._id, one.number, one.call_id, one.name, text, status)

    def _close(self, status: str) -> None:
        """End the open item, if there is one."""
        if self._open is None:
            return
        item = self._item(status)
        at = {"item_id": item["id"], "output_index": self._open.number}
        if self._open.call_id is None:
            text = item["content"][0]["text"]
            self._write("response.output_text.done", **at, content_index=0, text=text, logprobs=[])
            self._write("response.content_part.done", **at, content_index=0, part=item["content"][0])
        else:
            self._write("response.function_call_arguments.done", **at, name=item["name"], arguments=item["arguments"])
        self._write("response.output_item.done", output_index=self._open.number, item=item)
        self._output.append(item)
        self._open = None

    def _complete(self, chunk: dict[str, Any]) -> None:
        ending = ending_of(self._finish)
        if not self._output and self._open is None:
            self._start_text()
        self._close(ending.item_status)
        self._end(chunk, ending)

    def _fail(self, chunk: dict[str, Any]) -> None:
        if self._open is not None:
            self._output.append(self._item("incomplete"))
        self._end(chunk, Ending("failed", error=str(chunk["error"].get("message"))))

    def _end(self, chunk: dict[str, Any], ending: Ending) -> None:
        answer = {**chunk, **(self._first or {})}
        self.response = response_of(self._request, self._id, answer, self._output, ending)
        self._write(f"response.{ending.status}", response=self.response)

    def _write(self, name: str, /, **fields: Any) -> None:
        data = orjson.dumps({"type": name, **fields, "sequence_number": self._number})
        self._out += b"event: %b\n" % name.encode() + format_event(data, self._number)
        self._number += 1

    def _taken(self) -> bytes:
        out = bytes(self._out)
        self._out.clear()
        return out
