"""The replica's port with old clients and compressed bodies."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

from tests.serving.http.server import Server, serving
from tests.serving.tiny import Tiny

BODY: dict[str, Any] = {"model": "base", "prompt": "ab", "max_tokens": 6, "temperature": 0, "ignore_eos": True}


async def old_client(server: Server, body: dict[str, Any]) -> tuple[bytes, bytes]:
    reader, writer = await asyncio.open_connection(*server.address)
    data = json.dumps(body).encode()
    writer.write(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    head, _, answer = (await asyncio.wait_for(reader.read(), 60)).partition(b"\r\n\r\n")
    writer.close()
    return head.lower(), answer


async def test_an_old_client_reads_a_stream_to_the_end_of_the_connection(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        head, events = await old_client(server, {**BODY, "stream": True})
        assert b"transfer-encoding" not in head and b"text/event-stream" in head
        assert events.endswith(b"data: [DONE]\n\n") and (events.startswith((b"data: {", b"id: ")))
        head, whole = await old_client(server, BODY)
        assert json.loads(whole)["usage"]["completion_tokens"] == 6
        await server.idle()


async def test_a_compressed_body_is_read_within_the_limit_or_refused(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        plain = (await server.http.post("/v1/completions", json=BODY)).json()["choices"][0]["text"]
        for encoding, body, status in (
            ("gzip", gzip.compress(json.dumps(BODY).encode()), 200),
            ("br", json.dumps(BODY).encode(), 415),
            ("gzip", json.dumps(BODY).encode(), 400),
            ("gzip", gzip.compress(b" " * (1 << 21) + json.dumps(BODY).encode()), 413),
        ):
            answer = await server.http.post("/v1/completions", content=body, headers={"Content-Encoding": encoding})
            assert answer.status_code == status, answer.text
            if status == 200:
                assert answer.json()["choices"][0]["text"] == plain
            else:
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
