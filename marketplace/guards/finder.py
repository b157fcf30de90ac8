"""The gateway's side of the process that finds personal data: started by a first text, ended when it is late.

One text is searched at a time. Organizations take turns, and the queue of each is short: whoever fills it is asked to
come again.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from marketplace.guards.finder_process import MAX_FRAME_BYTES
from protocol.shares import Bound, Full, Late, Threads, declared

START_SECONDS = 60.0  # presidio's import takes 2 to 5 s, more on a busy machine
CPU_SECONDS = 5.0  # of one request: twice what the slowest one takes (docs/guards.md)
SEARCH_SECONDS = 30.0  # of one request on a machine that is busy with other things
MAX_CHARACTERS = 32_768  # of one request's texts in which something may be found
SEARCHES = declared(Bound("masking", places=1, share=1, waiting=4, seconds=START_SECONDS + SEARCH_SECONDS))
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
        self._thread = Threads(SEARCHES)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    async def find(self, kinds: Sequence[str], texts: Sequence[str], *, asker: Hashable) -> list[list[Span]]:
        """Return the findings in each text, in order and without overlaps, for the organization `asker`.

        Raises FinderBusy, FinderMissing and FinderFailed.
        """
        try:
            return await self._thread.run(asker, lambda _: self._find(sorted(kinds), list(texts)))
        except Full:
            raise FinderBusy from None
        except Late:
            raise FinderFailed("it took too long") from None

    def close(self) -> None:
        """End the process."""
        self._thread.close()
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
