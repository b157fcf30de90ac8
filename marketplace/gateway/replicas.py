"""HTTP/1.1 to replicas: POST alone, connections that are kept, answers read as they come.

It exists because a general client took a fifth of a prediction's time in this process. An answer must say where it ends
(a length, or chunks); a connection that ends before is lost, whatever it sent.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httptools

CONNECT_SECONDS = 2.0
IDLE_SECONDS = 3.0  # less than servers keep an idle connection, so that none is closed as it is used again
MAX_HEAD_BYTES = 1 << 16
_BUFFERED_BYTES = 1 << 18  # of an answer that its reader has not taken: then the replica waits

_Origin = tuple[str, int, bool]  # host, port, TLS


class NotReached(OSError):
    """No connection to the replica came about: it has not seen the request."""


class ReplicaLost(OSError):
    """The connection ended or took too long, or what came is not HTTP: the replica may have taken the request."""


class Replicas:
    """Connections to replicas, each used for one request at a time."""

    def __init__(self) -> None:
        """Connect at the first request."""
        self._idle: dict[_Origin, list[_Connection]] = {}

    async def post(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        seconds: float,
        first_byte: float | None = None,
        silence: float | None = None,
    ) -> Answer:
        """Send a request and return its answer once the head is there. `close` the answer in the end.

        first_byte, silence: seconds that the answer may take to its first byte and between two; None: any time

        Raises NotReached, and ReplicaLost, also when the whole answer is not there after `seconds`.
        """
        parts, origin = urlsplit(url), _origin(url)
        request = _head(parts.netloc, parts.path, len(body), headers) + body
        connection = self._kept(origin) or await _connect(origin)
        try:
            await connection.ask(request, seconds, first_byte=first_byte, silence=silence)
        except BaseException:
            connection.abort()
            raise
        return Answer(self, origin, connection)

    def close(self) -> None:
        """Close the connections that are not in use."""
        for kept in self._idle.values():
            for connection in kept:
                connection.abort()
        self._idle.clear()

    def _kept(self, origin: _Origin) -> _Connection | None:
        kept = self._idle.get(origin, [])
        fresh = time.monotonic() - IDLE_SECONDS
        while kept:
            connection = kept.pop()
            if connection.reusable and connection.idle_since > fresh:
                return connection
            connection.abort()
        return None

    def keep(self, origin: _Origin, connection: _Connection) -> None:
        """Take back a connection whose answer was read to its end."""
        connection.idle_since = time.monotonic()
        self._idle.setdefault(origin, []).append(connection)


class Answer:
    """The answer to one request; its body may still be on its way."""

    def __init__(self, replicas: Replicas, origin: _Origin, connection: _Connection) -> None:
        self.status = connection.status
        self.headers: Mapping[str, str] = connection.headers  # by lower-case name; of repeated ones, the last
        self._replicas, self._origin, self._connection = replicas, origin, connection
        self._closed = False

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes, once. Raises ReplicaLost."""
        return self._connection.chunks()

    def close(self) -> None:
        """Keep the connection if the body was read to its end, otherwise drop it. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._connection.reusable:
            self._replicas.keep(self._origin, self._connection)
        else:
            self._connection.abort()


class _Connection(asyncio.Protocol):
    """One connection. httptools calls the `on_` methods."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.idle_since = self.heard_at = 0.0
        self._transport: Any = None
        self._parser: Any = None  # None: no answer is expected
        self._limit: asyncio.TimerHandle | None = None
        self._quiet: asyncio.TimerHandle | None = None  # looks whether the answer is silent
        self._silence: float | None = None  # seconds that it may be
        self._waiter: asyncio.Future[None] | None = None
        self._error: ReplicaLost | None = None
        self._head_bytes = self._buffered = 0
        self._headed = self._complete = self._paused = False
        self._chunks: deque[bytes] = deque()

    async def ask(
        self, request: bytes, seconds: float, *, first_byte: float | None = None, silence: float | None = None
    ) -> None:
        """Send a request and wait for the head of its answer. Raises ReplicaLost."""
        self.headers, self._chunks = {}, deque()
        self._head_bytes = self._buffered = 0
        self._headed = self._complete = False
        self.heard_at = time.monotonic()
        self._parser = httptools.HttpResponseParser(self)
        self._limit = asyncio.get_running_loop().call_later(seconds, self._fail, "the answer took too long")
        self._silence = silence
        if first_byte is not None:
            self._quiet = asyncio.get_running_loop().call_later(first_byte, self._listen, self.heard_at)
        self._transport.write(request)
        while not self._headed:
            await self._more()
        if self._error is not None and not self._complete:
            raise self._error

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes. Raises ReplicaLost."""
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._buffered -= len(chunk)
                if self._paused and self._buffered < _BUFFERED_BYTES:
                    self._paused, self.heard_at = False, time.monotonic()
                    self._transport.resume_reading()
                yield chunk
            if self._complete:
                return
            await self._more()

    @property
    def reusable(self) -> bool:
        """Return whether another request may be sent: the last answer was read to its end, and nothing was wrong."""
        return self._complete and not self._chunks and self._error is None and not self._transport.is_closing()

    def abort(self) -> None:
        """Drop the connection."""
        self._fail("the connection was dropped")

    def _listen(self, heard_at: float) -> None:
        """Give the answer up unless something was heard since `heard_at`; look again when its silence is over.

        What a replica cannot send because its reader takes nothing is no silence.
        """
        self._quiet = None
        if self.heard_at == heard_at and not self._paused:
            self._fail("the replica is silent")
        elif self._silence is not None:
            left = self._silence if self._paused else self._silence - (time.monotonic() - self.heard_at)
            self._quiet = asyncio.get_running_loop().call_later(max(0.0, left), self._listen, self.heard_at)

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, why: str) -> None:
        if self._error is None:
            self._error = ReplicaLost(why)
        self._answered()
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def _answered(self) -> None:
        """Expect nothing more: what still comes on this connection is wrong."""
        self._parser = None
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None

    # -- called by the event loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self._fail("bytes came that belong to no answer")
            return
        started, self.heard_at = self._headed, time.monotonic()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("the answer is not HTTP")
        if not started:
            # The body's first bytes may have come in the same piece.
            self._head_bytes += len(data) - self._buffered
            if self._head_bytes > MAX_HEAD_BYTES:
                self._fail("the head of the answer is too large")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._error is None:
            self._error = ReplicaLost("the connection was lost")
        self._answered()
        self._wake()

    # -- called by the parser -----------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._headed:  # else: a trailer
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._headed = True
        self._wake()

    def on_body(self, part: bytes) -> None:
        self._chunks.append(part)
        self._buffered += len(part)
        if self._buffered >= _BUFFERED_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self._error = ReplicaLost("the replica closes the connection")
            self._transport.close()
        self._complete = True
        self._answered()
        self._wake()


def _origin(url: str) -> _Origin:
    parts = urlsplit(url)
    assert parts.hostname is not None
    tls = parts.scheme == "https"
    return parts.hostname, parts.port or (443 if tls else 80), tls


async def _connect(origin: _Origin) -> _Connection:
    host, port, tls = origin
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            context = ssl.create_default_context() if tls else None
            _, connection = await loop.create_connection(_Connection, host, port, ssl=context)
    except OSError as error:
        raise NotReached(str(error)) from None
    return connection


def _head(netloc: str, path: str, length: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"host: {netloc}", f"content-length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header may not hold a line feed")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
