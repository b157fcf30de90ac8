"""The gateway's side of the process that finds personal data: started by a first text, ended when it is late.

One text is searched at a time, in the order in which requests came. The queue is short, and shorter for each
organization: whoever fills it is asked to come again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from marketplace.guards.finder_process import MAX_FRAME_BYTES

START_SECONDS = 60.0  # presidio's import takes 2 to 5 s, more on a busy machine
CPU_SECONDS = 5.0  # of one request: twice what the slowest one takes (docs/guards.md)
SEARCH_SECONDS = 30.0  # of one request on a machine that is busy with other things
MAX_CHARACTERS = 32_768  # of one request's texts in which something may be found
MAX_WAITING = 16
MAX_WAITING_OF_ONE = 4  # of one organization
_PROGRAM = Path(__file__).with_name("finder_process.py")

Span = tuple[int, int, str]  # start, end, kind


class FinderBusy(Exception):
    """Too many requests wait to be searched."""


class FinderMissing(Exception):
    """The package that finds personal data cannot be imported."""


class FinderFailed(Exception):
    """The search took too long, or its process died. Its texts were not searched."""


class Finder:
    """Finds personal data in texts. Costs nothing before the first one."""

    def __init__(self) -> None:
        """Start with neither thread nor process."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="finder")
        self._waiting: Counter[Hashable] = Counter()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    async def find(self, kinds: Sequence[str], texts: Sequence[str], *, asker: Hashable) -> list[list[Span]]:
        """Return the findings in each text, in order and without overlaps, for the organization `asker`.

        Raises FinderBusy, FinderMissing and FinderFailed.
        """
        if self._waiting.total() >= MAX_WAITING or self._waiting[asker] >= MAX_WAITING_OF_ONE:
            raise FinderBusy
        self._waiting[asker] += 1
        loop = asyncio.get_running_loop()
        search: Future[list[list[Span]]] = self._thread.submit(self._find, sorted(kinds), list(texts))
        # Not when its caller stops waiting: a search that nobody waits for keeps its place in the queue.
        search.add_done_callback(lambda _: _call_soon(loop, self._left, asker))
        return await asyncio.wrap_future(search)

    def _left(self, asker: Hashable) -> None:
        self._waiting[asker] -= 1
        if not self._waiting[asker]:
            del self._waiting[asker]

    def close(self) -> None:
        """End the process."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._stop()

    def _find(self, kinds: list[str], texts: list[str]) -> list[list[Span]]:
        request = json.dumps({"kinds": kinds, "texts": texts, "cpu_seconds": CPU_SECONDS}).encode()
        if len(request) > MAX_FRAME_BYTES:
            raise FinderFailed("the texts are too long")
        try:
            connection = self._started()
            connection.settimeout(SEARCH_SECONDS)
            connection.sendall(struct.pack("!I", len(request)) + request)
            answer = _receive(connection)
        except OSError as error:  # a timeout, too
            self._stop()
            raise FinderFailed(type(error).__name__) from None
        return [[(start, end, kind) for start, end, kind in spans] for spans in answer]

    def _started(self) -> socket.socket:
        if self._socket is not None:
            return self._socket
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_PROGRAM)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a traceback might quote a text
                env={"PATH": os.environ.get("PATH", ""), "HOME": "/nonexistent"},  # no credentials
            )
        self._socket = ours
        ours.settimeout(START_SECONDS)
        if not _receive(ours)["ready"]:
            self._stop()
            raise FinderMissing
        return ours

    def _stop(self) -> None:
        connection, self._socket = self._socket, None
        process, self._process = self._process, None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.wait()


def _call_soon(loop: asyncio.AbstractEventLoop, call: Any, *arguments: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(call, *arguments)


def _receive(connection: socket.socket) -> Any:
    """Return one frame. Raises OSError, also at the end of the connection."""
    (size,) = struct.unpack("!I", _exactly(connection, 4))
    return json.loads(_exactly(connection, size))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(min(size - len(data), 2**16))
        if not piece:
            raise ConnectionResetError("the process ended")
        data += piece
    return bytes(data)
