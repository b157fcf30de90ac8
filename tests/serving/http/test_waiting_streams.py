"""A stream of a replica without a platform: a head and comments while it waits, and nothing else is different."""

from __future__ import annotations

import asyncio
import threading

import pytest

from protocol.events import WAITING
from serving.http import keep_alive
from serving.steps import PendingStep, StepPlan
from tests.serving.http.server import Recorder, Server, serving
from tests.serving.tiny import Tiny

BODY = {"model": "r4", "prompt": "abc", "max_tokens": 3, "temperature": 0, "ignore_eos": True}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep_alive, "ALIVE_SECONDS", 0.02)


def held_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let no step begin before the event is set."""
    free, launch = threading.Event(), server.engine.runner.launch

    def waiting(plan: StepPlan) -> PendingStep:
        assert free.wait(60)
        return launch(plan)

    monkeypatch.setattr(server.engine.runner, "launch", waiting)
    return free


async def test_a_stream_that_waits_for_a_step_has_its_head_and_comments(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tiny) as server:
        whole = (await server.http.post("/v1/completions", json=BODY)).json()["choices"][0]["text"]
        free = held_up(server, monkeypatch)
        async with server.http.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
            assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
            pieces, seen = answer.aiter_bytes(), b""
            while seen.count(WAITING) < 3:
                seen += await anext(pieces)
            assert b"data:" not in seen
            free.set()
            async for piece in pieces:
                seen += piece
        plain = {name: value for name, value in BODY.items() if name != "ignore_eos"}
        again = await server.openai.completions.create(**plain, stream=True, extra_body={"ignore_eos": True})
        assert "".join([chunk.choices[0].text async for chunk in again if chunk.choices]) == whole
    assert seen.endswith(b"data: [DONE]\n\n")


async def test_a_client_that_leaves_during_the_comments_ends_its_request(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    async with serving(tiny, observer=recorder) as server:
        free = held_up(server, monkeypatch)
        async with server.http.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
            assert (await anext(answer.aiter_bytes())).startswith(WAITING)
        free.set()
        for _ in range(3_000):
            if recorder.finished:
                break
            await asyncio.sleep(0.01)
    ((_, usage, reason),) = recorder.finished
    assert reason == "cancelled" and usage.completion_tokens <= 1


async def test_a_refusal_keeps_its_status_where_it_comes_before_the_head(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        answer = await server.http.post("/v1/completions", json=BODY | {"stream": True, "temperature": 9})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "temperature"
