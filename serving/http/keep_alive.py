"""Signs of life of an answer that is being worked out, so that a gateway, or the client of a stream and the proxies
between, can tell waiting from silence.

A request waits for its adapter, its seat and its prefill, and a whole answer for its last token: up to minutes without
a byte. From a second of that on, a byte goes out every second: comments in a stream, spaces before a whole answer's
JSON. The head must then go out first, with status 200; a refusal that comes after it is told in the body, with its
status (`protocol.messages.LateRefusal`).
"""

from __future__ import annotations

import asyncio
import time

import msgspec
from starlette.types import Message, Send

from protocol.events import DONE, WAITING, format_event
from protocol.messages import PREDICTION_HEADER, LateRefusal, OpenAIError, to_fields

ALIVE_SECONDS = 1.0
_SPACE = b" "


class KeptAlive:
    """The sending side of one answer. `send` passes everything on; `begin` lets the signs of life begin.

    Signs and messages never interleave. `close` in the end.
    """

    def __init__(self, send: Send, *, seconds: float) -> None:
        self._send, self._seconds = send, seconds
        self._lock = asyncio.Lock()
        self._sent_at = time.monotonic()
        self._begun = self._started = self._ended = False  # begun: by a sign of life, started: by the answer itself
        self._stream = False
        self._request_id = ""
        self._late: tuple[int, str | None] | None = None  # status and Retry-After of a refusal
        self._refusal = bytearray()
        self._ticking: asyncio.Task[None] | None = None

    def begin(self, request_id: str, *, stream: bool) -> None:
        """Give signs of life from a second of silence on, in the form of a stream or of a whole answer."""
        self._request_id, self._stream = request_id, stream
        self._ticking = asyncio.create_task(self._tick())

    def close(self) -> None:
        """End the signs of life."""
        if self._ticking is not None:
            self._ticking.cancel()

    async def send(self, message: Message) -> None:
        """Pass on a message of the answer, which may have begun already."""
        async with self._lock:
            if message["type"] == "http.response.start":
                await self._start(message)
            else:
                await self._body(message)
            self._sent_at = time.monotonic()

    async def _start(self, message: Message) -> None:
        self._started = True
        if not self._begun:
            await self._send(message)
        elif message["status"] != 200:
            again = [value.decode() for name, value in message.get("headers", ()) if name.lower() == b"retry-after"]
            self._late = message["status"], again[0] if again else None

    async def _body(self, message: Message) -> None:
        more = message.get("more_body", False)
        self._ended = not more
        if self._late is None:
            await self._send(message)
            return
        self._refusal += message.get("body", b"")
        if not more:
            await self._send({"type": "http.response.body", "body": self._told(self._late), "more_body": False})

    def _told(self, late: tuple[int, str | None]) -> bytes:
        """Return the refusal's body with what its head would have said."""
        status, retry_after = late
        fields = msgspec.json.decode(self._refusal)
        error = msgspec.convert(fields["error"], OpenAIError)
        refusal = LateRefusal(error=error, status=status, retry_after=retry_after)
        data = msgspec.json.encode(fields | to_fields(refusal))
        return format_event(data, 0) + DONE if self._stream else data

    async def _tick(self) -> None:
        while not self._ended:
            left = self._sent_at + self._seconds - time.monotonic()
            if left > 0:
                await asyncio.sleep(left)
                continue
            async with self._lock:
                if time.monotonic() - self._sent_at < self._seconds or self._ended:
                    continue
                if self._started and not self._stream:
                    return  # the answer itself is on its way, with its length
                await self._sign()
                self._sent_at = time.monotonic()

    async def _sign(self) -> None:
        if not self._begun and not self._started:
            self._begun = True
            kind = b"text/event-stream; charset=utf-8" if self._stream else b"application/json"
            headers = [
                (b"content-type", kind),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),
                (PREDICTION_HEADER.encode(), self._request_id.encode()),
            ]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        sign = WAITING if self._stream else _SPACE
        await self._send({"type": "http.response.body", "body": sign, "more_body": True})
