"""The benchmark's client counts the tokens it was sent, and says why when it was sent none."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.serving.__main__ import _options
from benchmarks.serving.client import Client
from benchmarks.serving.metrics import Record
from benchmarks.serving.replica import Endpoint
from benchmarks.serving.workload import Item

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def asked(answers: list[bytes], *, times: int = 1) -> list[Record]:
    """The same question so often on one connection; each answer comes in these pieces, then the connection ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(times):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"POST /v1/completions HTTP/1.1\r\n")
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
            for piece in answers:
                writer.write(piece)
                await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        client = await Client.connect(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        records = [Record(0.0, 1) for _ in range(times)]
        async with asyncio.timeout(60):
            for record in records:
                await client.ask("/v1/completions", {"prompt": [1]}, record)
        client.close()
    return records


async def test_tokens_are_counted_however_their_events_are_cut() -> None:
    events = b'data: {"choices":[{"token_ids":[5,6]}]}\n\ndata: {"choices":[{"token_ids":[7]}]}\n\n'
    whole = chunk(events) + chunk(b'data: {"choices":[],"usage":{}}\n\ndata: [DONE]\n\n') + b"0\r\n\r\n"
    for pieces in ([HEAD + whole], [HEAD, *(whole[at : at + 9] for at in range(0, len(whole), 9))]):
        records = await asked(pieces, times=2)
        assert [(len(r.tokens), r.error) for r in records] == [(3, None)] * 2
        assert all(r.tokens == sorted(r.tokens) for r in records)


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([b"HTTP/1.1 429 Busy\r\nContent-Length: 4\r\n\r\nfull"], "HTTP 429: full"),
        ([HEAD, chunk(b'data: {"error":{"message":"revoked"}}\n\n'), b"0\r\n\r\n"], "revoked"),
        ([HEAD, chunk(b"data: {nonsense\n\n")], "DecodeError"),
        ([b"nonsense\r\n\r\n"], "HttpParser"),
        ([HEAD, chunk(b'data: {"choices":[{"token_ids":[5]}]}\n\n')], "the connection was lost"),
    ],
)
async def test_an_invalid_answer_is_an_error(answers: list[bytes], error: str) -> None:
    (record,) = await asked(answers)
    assert record.error is not None and error in record.error


async def test_a_connection_that_ended_is_not_asked_again() -> None:
    first, second = Record(0.0, 1), Record(0.0, 1)

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        client = await Client.connect(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await client.ask("/", {}, first)
        await client.ask("/", {}, second)
    assert first.error is not None and second.error == "the connection is closed"


class Server(BaseHTTPRequestHandler):
    """Answers each completion with as many tokens as it asks for, one event each."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if (self.path, body["model"]) != ("/v1/completions", "theirs"):
            return self.send_error(404)
        event = b'data: {"choices":[{"token_ids":[5]}]}\n\n'
        answer = event * body["max_tokens"] + b"data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        return None

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_server_that_somebody_else_started_is_measured_by_its_address(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        named = f"theirs=http://127.0.0.1:{server.server_port}/v1"
        ((model, url),) = _options(["--url", named, "--no-peft", "--work", str(tmp_path)]).url
        items = [Item(None, [1, 2], 3)] * 4
        figures = Endpoint(model, url, model).run(items, 2)
        wrong = Endpoint("x", url, "another").run(items, 2)
        server.shutdown()
    assert (figures["requests"], figures["errors"]) == (4, 0) and figures["output_tokens_per_s"] > 0
    assert wrong["errors"] == 4 and wrong["output_tokens_per_s"] == 0


@pytest.mark.parametrize("text", ["http://127.0.0.1:1", "=http://127.0.0.1:1", "model=127.0.0.1:1"])
def test_an_address_without_a_model_or_a_scheme_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _options(["--url", text])
    assert "is not MODEL=http://HOST:PORT" in capsys.readouterr().err
