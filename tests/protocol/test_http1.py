"""Both servers at the edges of HTTP/1: old clients, heads that do not come, heads that are too large."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from protocol import http1
from protocol.http1 import EdgeProtocol

ROOT = Path(__file__).resolve().parents[2]
PIECES = [b"one ", b"", b"two\r\n", b"x" * 100_000]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Stream PIECES; at /whole with a length, at /nothing without a body."""
    while (await receive()).get("more_body"):
        pass
    body = b"".join(PIECES)
    if scope["path"] == "/nothing":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        return
    whole = scope["path"] == "/whole"
    length = [(b"content-length", str(len(body)).encode())] if whole else []
    await send({"type": "http.response.start", "status": 200, "headers": length})
    for piece in [body] if whole else PIECES:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[int]:
    server = uvicorn.Server(uvicorn.Config(app, http=EdgeProtocol, lifespan="off", log_config=None, ws="none"))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve([listener]))
        while not server.started:
            assert not task.done()
            await asyncio.sleep(0.01)
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


async def ask(port: int, request: bytes) -> tuple[bytes, bytes]:
    """Send a request and read to the end of the connection. Returns head and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.lower(), body


@pytest.mark.parametrize("extra", [b"", b"Connection: keep-alive\r\n", b"Host: x\r\n"])
@pytest.mark.parametrize("request_line", [b"GET /", b"POST /"])
async def test_the_end_of_the_connection_ends_a_stream_to_an_old_client(extra: bytes, request_line: bytes) -> None:
    async with listening() as port:
        head, body = await ask(port, request_line + b" HTTP/1.0\r\n" + extra + b"\r\n")
    assert body == b"".join(PIECES)
    assert b"transfer-encoding" not in head and b"content-length" not in head and b"connection: close" in head


async def test_other_answers_to_an_old_client_are_as_they_were() -> None:
    async with listening() as port:
        head, body = await ask(port, b"GET /whole HTTP/1.0\r\n\r\n")
        assert b"content-length: %d" % len(body) in head and body == b"".join(PIECES)
        head, body = await ask(port, b"GET /nothing HTTP/1.0\r\n\r\n")
        assert head.startswith(b"http/1.1 204") and body == b""
        head, body = await ask(port, b"HEAD / HTTP/1.0\r\n\r\n")
        assert head.startswith(b"http/1.1 200") and body == b""


async def test_a_newer_client_still_gets_chunks_and_keeps_its_connection() -> None:
    async with listening() as port:
        two = b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        head, rest = await ask(port, two)
    assert b"transfer-encoding: chunked" in head and rest.count(b"0\r\n\r\n") == 2 and rest.count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\nX: ", b"POST /v1/completions HT"])
async def test_a_head_that_does_not_come_is_not_waited_for(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "HEAD_SECONDS", 0.2)
    async with listening() as port:
        head, _ = await ask(port, start)
    assert head.startswith(b"http/1.1 408")


async def test_the_second_head_of_a_connection_is_not_waited_for_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "HEAD_SECONDS", 0.5)
    async with listening() as port:
        _, rest = await ask(port, b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\nGET /no")
    assert rest.startswith(b"HTTP/1.1 408")


async def test_a_head_that_is_too_large_is_refused_before_it_is_kept() -> None:
    async with listening() as port:
        head, _ = await ask(port, b"GET / HTTP/1.1\r\nX: " + b"x" * (http1.MAX_HEAD_BYTES + 1))
        assert head.startswith(b"http/1.1 431") or head == b"", "the answer may be lost with what the client still sent"
        head, body = await ask(port, b"GET /whole HTTP/1.1\r\nConnection: close\r\nX: " + b"x" * 40_000 + b"\r\n\r\n")
        assert head.startswith(b"http/1.1 200") and body == b"".join(PIECES)


def test_both_servers_use_it_in_every_layout() -> None:
    for name in ("Dockerfile", "devstack/services.py"):
        assert "protocol.http1:EdgeProtocol" in (ROOT / name).read_text(), name
    assert '"http": EdgeProtocol' in (ROOT / "serving/http/server.py").read_text()
