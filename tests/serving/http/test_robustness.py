"""Clients that misbehave: each gets a clear answer or an end, nobody else notices, nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

from protocol import http1
from serving.http import server as http_server
from serving.http import wire
from tests.serving.http.server import Recorder, Server, serving
from tests.serving.tiny import Tiny


def request_bytes(body: dict[str, Any], path: str = "/v1/completions") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def connect(server: Server, data: bytes, *, receive_buffer: int | None = None) -> socket.socket:
    client = socket.socket()
    if receive_buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.connect(server.address)
    client.sendall(data)
    client.setblocking(False)
    return client


async def until(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        await asyncio.sleep(0.02)


async def nothing_left(server: Server, tasks: int) -> None:
    await server.idle()
    await until(lambda: not server.uvicorn.server_state.connections or len(asyncio.all_tasks()) <= tasks)
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    planner = server.engine.planner
    assert planner.pool.used == 0 and not planner.running and not len(planner.waiting)
    planner.check_integrity()


HEAVY = {
    "model": "base",
    "prompt": [5] * 8,
    "max_tokens": 450,
    "n": 24,
    "ignore_eos": True,
    "logprobs": 20,
    "return_token_ids": True,
}


async def test_a_client_that_does_not_read_its_stream_is_dropped_and_holds_up_nobody(tiny: Tiny) -> None:
    recorder = Recorder()
    async with serving(tiny, observer=recorder) as server:
        tasks = len(asyncio.all_tasks())
        clients = [connect(server, request_bytes(HEAVY | {"stream": True}), receive_buffer=4096) for _ in range(2)]
        await until(lambda: len(server.engine._active) > 4)
        answer = await server.openai.completions.create(model="r4", prompt=[70, 71, 72], max_tokens=8, temperature=0)
        assert answer.choices
        await until(lambda: len(recorder.finished) == 3, 60)
        await nothing_left(server, tasks)
        for client in clients:
            client.close()
    ended = sorted(reason for _, _, reason in recorder.finished)
    assert ended[:2] == ["cancelled", "cancelled"]
    used = [usage.completion_tokens for _, usage, reason in recorder.finished if reason == "cancelled"]
    assert all(0 < tokens < 24 * 450 for tokens in used)


@pytest.mark.deep
async def test_a_client_that_does_not_take_a_whole_answer_is_dropped_by_the_kernel(tiny: Tiny) -> None:
    async with serving(tiny, stall_s=1.0) as server:
        tasks = len(asyncio.all_tasks())
        client = connect(server, request_bytes(HEAVY), receive_buffer=4096)
        await until(lambda: len(server.uvicorn.server_state.connections) == 1)
        await until(lambda: not server.uvicorn.server_state.connections, 60)
        await nothing_left(server, tasks)
        client.close()


async def test_heads_and_bodies_that_do_not_come_are_not_waited_for(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "HEAD_SECONDS", 0.4)
    monkeypatch.setattr(wire, "BODY_SECONDS", 0.4)
    async with serving(tiny) as server:
        loop, whole = asyncio.get_running_loop(), request_bytes({"model": "base", "prompt": "a", "max_tokens": 1})
        silent, dripping = connect(server, b""), connect(server, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-A: ")
        second = connect(server, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in await asyncio.wait_for(loop.sock_recv(second, 65536), 5)
        await loop.sock_sendall(second, b"GET /heal")  # the second request of a kept connection
        bodiless = connect(server, whole[:-3])
        for client in (silent, dripping, second):
            with pytest.raises(ConnectionError):
                for _ in range(100):
                    if client is dripping:
                        await loop.sock_sendall(client, b"x")
                    if not await asyncio.wait_for(loop.sock_recv(client, 10), 0.05 if client is dripping else 5):
                        raise ConnectionResetError
        late = await asyncio.wait_for(loop.sock_recv(bodiless, 65536), 5)
        assert b" 408 " in late and b"request_timeout" in late
        huge = connect(server, b"GET /healthz HTTP/1.1\r\nX-A: ")
        with pytest.raises(ConnectionError):
            for _ in range(100):
                await loop.sock_sendall(huge, b"x" * 4096)
                await asyncio.sleep(0.001)
        for client in (silent, dripping, second, bodiless, huge):
            client.close()
        assert (await server.http.get("/healthz")).status_code == 200


@pytest.mark.parametrize("cancels", [200, pytest.param(1_000, marks=pytest.mark.deep)])
async def test_cancels_leave_nothing_behind(tiny: Tiny, cancels: int) -> None:
    recorder = Recorder()
    async with serving(tiny, observer=recorder) as server:
        await server.openai.completions.create(model="r4", prompt="warm", max_tokens=1)
        tasks = len(asyncio.all_tasks())
        kinds = [
            {"prompt": [5] * 100, "stream": True},
            {"prompt": [6] * 100},
            {"prompt": "abc", "n": 3, "stream": True},
            {"prompt": "abc", "guided_regex": "[a-z]{300}", "ignore_eos": False},
        ]

        async def one(index: int) -> None:
            kind = kinds[index % len(kinds)]
            body = {"model": ("base", "r4")[index % 2], "max_tokens": 300, "ignore_eos": True, **kind}
            client = connect(server, request_bytes(body))
            await asyncio.sleep(0.001 * (index % 40))
            client.close()

        for batch in range(0, cancels, 100):
            await asyncio.gather(*(one(index) for index in range(batch, batch + 100)))
        await nothing_left(server, tasks)
        answer = await server.openai.completions.create(
            model="r4",
            prompt=[70, 71, 72],
            max_tokens=8,
            temperature=0,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        assert answer.choices[0].model_extra["token_ids"] == tiny.reference("r4", [70, 71, 72], 8)
    assert len({request_id for request_id, _, _ in recorder.finished}) == len(recorder.finished)


async def test_a_drained_replica_says_so_and_refuses(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        body = {"model": "base", "prompt": [5] * 20, "max_tokens": 400, "ignore_eos": True}
        running = asyncio.create_task(server.http.post("/v1/completions", json=body))
        await until(lambda: server.engine._active)
        server.engine.drain()
        assert (await server.http.get("/readyz")).status_code == 503
        refused = await server.http.post("/v1/completions", json=body)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "engine_stopped"
        assert (await running).json()["usage"]["completion_tokens"] == 400


def test_the_collector_ignores_the_objects_a_replica_starts_with(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(http_server.DrainingServer, "run", lambda self, sockets: frozen.append(gc.get_freeze_count()))
    monkeypatch.setattr(http_server.signal, "signal", lambda number, handler: None)
    gc.unfreeze()
    try:
        engine = SimpleNamespace(failure=None, on_failure=None)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            assert not http_server.run_server(lambda *_: None, engine, listener, 1)  # type: ignore[arg-type, return-value]
        assert len(frozen) == 1 and frozen[0] > 50_000
    finally:
        gc.unfreeze()
