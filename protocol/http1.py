"""HTTP/1 at its edges, for both servers: uvicorn with limits on request heads, and answers that an HTTP/1.0 client can
read. Only servers import this module."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_SECONDS = 20.0  # from the first byte of a request to the end of its headers
MAX_HEAD_BYTES = 1 << 16
# Keys of the ASGI scope: drops the connection and its unsent data; a list of calls to make when the server stops, for
# answers that would go on for ever.
ABORT, ON_SHUTDOWN = "intarsia.abort", "intarsia.on_shutdown"


class CloseDelimitedCycle(RequestResponseCycle):
    """The answer to an HTTP/1.0 request: that client knows no chunks, so the end of the connection ends the body.

    See RFC 9112, sections 6.1 and 6.3. uvicorn closes the connection after the answer by itself.
    """

    _until_close = False

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            self._until_close = b"content-length" not in names
            if self._until_close:
                self.chunked_encoding = False
        elif self._until_close:
            self.expected_content_length = len(message.get("body", b""))  # uvicorn compares: no length was announced
        await super().send(message)


class EdgeProtocol(HttpToolsProtocol):
    """The protocol of one connection. A head that takes too long or is too large is answered with 408 or 431."""

    _limit: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._limit is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._give_up(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._on_shutdown: list[Callable[[], None]] = []
        self.scope[ABORT] = self.transport.abort  # type: ignore[literal-required]
        self.scope[ON_SHUTDOWN] = self._on_shutdown  # type: ignore[literal-required]
        if self._limit is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._head_is_complete()
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0" and self.cycle is not None and self.cycle.scope is self.scope:
            self.cycle.__class__ = CloseDelimitedCycle  # its task starts after this turn of the loop

    def shutdown(self) -> None:
        super().shutdown()
        for call in getattr(self, "_on_shutdown", ()):
            call()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_complete()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._head_bytes = 0
        self._limit = self.loop.call_later(HEAD_SECONDS, self._give_up, b"408 Request Timeout")

    def _head_is_complete(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _give_up(self, status: bytes) -> None:
        """Refuse a head and drop the connection; an answer that is still being written is cut as well."""
        self._head_is_complete()
        if not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()
