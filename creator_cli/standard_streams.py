"""Standard input and output of a server of JSON-RPC in lines, for a client that closes its side before all answers.

The SDK ends at the end of its input and drops what it has not answered, though a prediction is paid for by then. So the
end is passed on only once every request is answered, or the client can read no answer any more.
"""

from __future__ import annotations

import io
import json
import os
import select
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

LOOK_SECONDS = 0.1  # between two looks at whether the client still reads


class OpenRequests:
    """The ids of requests that came in and are not answered. Thread-safe."""

    def __init__(self, output: int) -> None:
        """Start with none. output: the descriptor through which the client reads answers."""
        self._output = output
        self._open: set[Any] = set()
        self._changed = threading.Condition()

    def came(self, line: bytes) -> None:
        """Note a message of the client: a request is open until its answer, or until the client takes it back."""
        message = _parsed(line)
        method, number = message.get("method"), message.get("id")
        with self._changed:
            if method == "notifications/cancelled" and isinstance(params := message.get("params"), dict):
                self._open.discard(params.get("requestId"))
            elif isinstance(method, str) and isinstance(number, str | int):
                self._open.add(number)
            self._changed.notify_all()

    def went(self, line: bytes) -> None:
        """Note a message to the client."""
        message = _parsed(line)
        if "method" not in message and isinstance(message.get("id"), str | int):
            with self._changed:
                self._open.discard(message["id"])
                self._changed.notify_all()

    def wait(self) -> None:
        """Return when all are answered, or the client has gone."""
        with self._changed:
            while self._open and not self._is_unread():
                self._changed.wait(LOOK_SECONDS)

    def _is_unread(self) -> bool:
        poll = select.poll()
        poll.register(self._output, 0)  # errors and hang-ups are told without being asked for
        return any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poll.poll(0))


class _Side(io.RawIOBase):
    """One direction. Messages are lines, wherever the pieces are cut."""

    def __init__(self, descriptor: int, requests: OpenRequests) -> None:
        super().__init__()
        self._descriptor, self._requests, self._rest = descriptor, requests, b""

    def _lines(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines


class _Input(_Side):
    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        data = os.read(self._descriptor, len(view))
        for line in self._lines(data):
            self._requests.came(line)
        if not data:
            self._requests.wait()
        view[: len(data)] = data
        return len(data)


class _Output(_Side):
    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        left = memoryview(data)
        size, lines = len(left), self._lines(bytes(left))
        while left:
            left = left[os.write(self._descriptor, left) :]
        for line in lines:
            self._requests.went(line)
        return size


def hold_back_the_end() -> None:
    """Make `sys.stdin` end as this module says, and keep what anything else prints away from the client's answers."""
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    requests = OpenRequests(outgoing)
    sys.stdin = io.TextIOWrapper(_Input(incoming, requests), encoding="utf-8", errors="replace")  # type: ignore[type-var]
    sys.stdout = io.TextIOWrapper(_Output(outgoing, requests), encoding="utf-8")  # type: ignore[type-var]


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}
