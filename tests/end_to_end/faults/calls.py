"""Clients of every kind, and an exact record of everything each one of them was given.

Each call has a text of its own in its body, so the SHA-256 of the body, which the hold keeps, names the call: a
package's own retries send the same body again and belong to the same call.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai

from tests.end_to_end.faults.http_answer import Answer, parse_answer, parse_events

PATH = "/v1/chat/completions"
PREDICTION = "x-intarsia-prediction"
PROMISE = "othing was charged"
PATIENCE = 120.0  # seconds that a client waits for anything at all


@dataclass(frozen=True)
class Given:
    """One answer as it reached the client. `tokens`: completion tokens in it; `whole`: to its end, without an error."""

    prediction_id: str | None
    status: int
    tokens: int
    whole: bool
    promised_free: bool
    told_cost: int | None
    code: str  # of the error; "" for none
    may_retry: bool


@dataclass
class Call:
    """One call of one client; times are unix seconds. `given` has one answer, or several where a package retried."""

    body_hash: str
    kind: str
    started: float
    ended: float = 0.0
    tokens_at_hang_up: int = 0
    countable: bool = True  # False for a client that tore the connection down without reading the rest
    hung_up: bool = False
    given: list[Given] = field(default_factory=list)

    def end(self, answer: Answer | None) -> None:
        """Note the answer that ended the call, or that there was none."""
        self.ended = time.time()
        if answer is not None:
            self.given.append(_given(answer))

    @property
    def outcome(self) -> str:
        """Return a word or two for the report."""
        if not self.given:
            return "no answer"
        last = self.given[-1]
        return "whole" if last.whole else f"{last.status} {last.code or 'cut'}"


def body_of(model: str, text: str, *, max_tokens: int, stream: bool, **options: object) -> bytes:
    """Return the body of a call; `text` makes it unique and tells a scripted replica how to behave."""
    fields: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "stream": stream,
        **options,
    }
    if stream:
        fields["stream_options"] = {"include_usage": True}
    return json.dumps(fields).encode()


def _given(answer: Answer) -> Given:
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        events = parse_events(answer.body)
        error, extra, usage, tokens = events.error, events.extra, events.usage, events.tokens
        whole = events.done and error is None
    else:
        data = answer.json() if answer.complete else {}
        error, extra, usage = data.get("error"), data.get("intarsia") or {}, data.get("usage") or {}
        whole = answer.complete and answer.status == 200 and error is None and bool(data)
        tokens = int(usage.get("completion_tokens", 0)) if whole else 0
    error = error or {}
    return Given(
        prediction_id=answer.headers.get(PREDICTION),
        status=answer.status,
        tokens=tokens,
        whole=whole,
        promised_free=PROMISE in str(error.get("message")),
        told_cost=usage.get("cost_nano_usd") if extra.get("settled") else None,
        code=str(error.get("code") or ""),
        may_retry=answer.headers.get("x-should-retry") != "false",
    )


class Client:
    """Makes calls with one API key and keeps the record of each."""

    def __init__(self, url: str, api_key: str) -> None:
        self._url, self._key = url, api_key
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self.calls: list[Call] = []

    def _new(self, kind: str, body: bytes) -> Call:
        call = Call(hashlib.sha256(body).hexdigest(), kind, time.time())
        self.calls.append(call)
        return call

    async def raw(
        self,
        kind: str,
        body: bytes,
        *,
        hang_up: Callable[[int], bool] | None = None,
        after: float | None = None,
        abrupt: bool = False,
        on_tokens: Callable[[int], None] | None = None,
    ) -> Call:
        """Make one call over a socket of its own, and read until the connection ends, whichever side ends it.

        It hangs up when `hang_up(tokens)` says so, or `after` seconds after sending. A hang-up closes the sending
        half and reads on, so that every token that was under way is counted; an abrupt one resets the connection.
        """
        call = self._new(kind, body)
        received = bytearray()
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            call.end(None)
            return call
        try:
            writer.write(self._head(len(body)) + body)
            await writer.drain()
            deadline = None if after is None else time.monotonic() + after
            call.hung_up = await _read(reader, received, deadline, hang_up, on_tokens)
            if call.hung_up:
                call.tokens_at_hang_up = _tokens(received)
                if abrupt:
                    call.countable = False
                    _reset(writer)
                else:
                    writer.write_eof()
                    await _read(reader, received, None, None, on_tokens)
        except OSError:
            pass  # the gateway died before it had taken the request
        finally:
            writer.close()
        call.end(parse_answer(bytes(received)))
        return call

    def _head(self, length: int) -> bytes:
        return (
            f"POST {PATH} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\nauthorization: Bearer {self._key}\r\n"
            f"content-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        ).encode()

    async def package(self, kind: str, body: bytes, *, timeout: float = PATIENCE, retries: int = 2) -> Call:
        """Make one call with the unmodified `openai` package, whose own retries are part of the call."""
        fields: dict[str, Any] = json.loads(body)
        extra = {name: fields.pop(name) for name in ("ignore_eos",) if name in fields}  # no parameters of the package
        call = self._new(kind, body)

        async def sent(request: httpx.Request) -> None:
            call.body_hash = hashlib.sha256(await request.aread()).hexdigest()

        async def answered(response: httpx.Response) -> None:
            if response.status_code >= 400:
                whole = await response.aread()
                call.given.append(_given(Answer(response.status_code, dict(response.headers), whole, complete=True)))

        hooks: dict[str, list[Any]] = {"request": [sent], "response": [answered]}
        http = httpx.AsyncClient(event_hooks=hooks, timeout=timeout, trust_env=False)
        received = bytearray()
        headers: dict[str, str] | None = None
        complete = False
        async with openai.AsyncOpenAI(
            base_url=f"{self._url}/v1", api_key=self._key, timeout=timeout, max_retries=retries, http_client=http
        ) as client:
            try:
                async with client.chat.completions.with_streaming_response.create(
                    **fields, extra_body=extra
                ) as response:
                    headers = dict(response.headers)
                    async for part in response.iter_bytes():
                        received += part
                    complete = True
            except (openai.APIError, httpx.HTTPError) as error:
                call.hung_up = isinstance(error, openai.APITimeoutError | httpx.TimeoutException)
                call.countable = not call.hung_up
        call.end(None if headers is None else Answer(200, headers, bytes(received), complete))
        return call


async def _read(
    reader: asyncio.StreamReader,
    received: bytearray,
    deadline: float | None,
    hang_up: Callable[[int], bool] | None,
    on_tokens: Callable[[int], None] | None,
) -> bool:
    """Read into `received` until the end (False), or until it is time to hang up (True)."""
    while True:
        limit = PATIENCE if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            part = await asyncio.wait_for(reader.read(1 << 16), limit)
        except TimeoutError:
            return True
        except OSError:  # reset by a dying gateway: what had arrived before counts
            received += reader._buffer  # type: ignore[attr-defined]
            return False
        if not part:
            return False
        received += part
        tokens = _tokens(received)
        if on_tokens is not None:
            on_tokens(tokens)
        if hang_up is not None and hang_up(tokens):
            return True


def _tokens(received: bytearray) -> int:
    """Return the tokens of the last whole event in the bytes so far."""
    end = received.rfind(b"\n\n")
    start = received.rfind(b"id: ", 0, max(end, 0))
    if start < 0:
        return 0
    digits = bytes(received[start + 4 : start + 24]).split(b"\n")[0].strip()
    return int(digits) if digits.isdigit() else 0


def _reset(writer: asyncio.StreamWriter) -> None:
    """Tear the connection down so that the peer sees a reset."""
    own: socket.socket = writer.get_extra_info("socket")
    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
