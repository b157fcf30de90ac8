"""Reading an HTTP/1.1 answer that may end anywhere, because a process was killed while it was sent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """As much of an answer as arrived. `complete`: the body came to the end that its framing announced."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool

    def json(self) -> dict[str, Any]:
        """Return the body as an object; `{}` for anything else."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


def parse_answer(raw: bytes) -> Answer | None:
    """Parse the bytes that arrived before the connection ended; None if the headers did not."""
    head, separator, rest = raw.partition(b"\r\n\r\n")
    if not separator:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    status = int(first.split(" ")[1])
    if headers.get("transfer-encoding") == "chunked":
        body, complete = _unchunk(rest)
    else:
        length = int(headers.get("content-length", -1))
        body, complete = rest, length < 0 or len(rest) >= length
    return Answer(status, headers, body, complete)


def _unchunk(data: bytes) -> tuple[bytes, bool]:
    body, position = bytearray(), 0
    while True:
        end = data.find(b"\r\n", position)
        if end < 0:
            return bytes(body), False
        size = int(data[position:end].split(b";")[0], 16)
        if size == 0:
            return bytes(body), True
        body += data[end + 2 : end + 2 + size]
        position = end + 2 + size + 2
        if len(data) < position:
            return bytes(body), False


@dataclass(frozen=True)
class Events:
    """The whole events of a stream. `tokens`: completion tokens delivered, by the last `id: N` line."""

    tokens: int
    first_token: bool
    done: bool
    error: dict[str, Any] | None
    extra: dict[str, Any]  # the platform's addition, on the last chunk
    usage: dict[str, Any]


def parse_events(body: bytes) -> Events:
    """Read a body of server-sent events; an event that is not closed by an empty line did not arrive."""
    tokens, done = 0, False
    error: dict[str, Any] | None = None
    extra: dict[str, Any] = {}
    usage: dict[str, Any] = {}
    whole, _, _ = body.rpartition(b"\n\n")
    for event in whole.split(b"\n\n"):
        for line in event.split(b"\n"):
            if line.startswith(b"id: "):
                tokens = max(tokens, int(line[4:]))
            elif line == b"data: [DONE]":
                done = True
            elif line.startswith(b"data: "):
                data = json.loads(line[6:])
                error = data.get("error", error)
                extra = data.get("intarsia", extra) or extra
                usage = data.get("usage") or usage
    return Events(tokens, tokens > 0, done, error, extra, usage)
