"""A client that hangs up is noticed at once in every phase, and nothing is computed for it afterwards.

Each phase is held open by a gate, so that the client is gone for certain while the replica is in it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from serving.constraints import GrammarCompiler
from serving.http.admission import Admission, IncomingRequest, InsecureAuthorizer
from serving.http.prompts import PromptReader
from tests.serving.http.server import Recorder, Server, serving
from tests.serving.http.test_robustness import connect, nothing_left, request_bytes
from tests.serving.tiny import Tiny

BODY = {"model": "base", "prompt": [5] * 8, "max_tokens": 400, "ignore_eos": True}
SECONDS = 60


class Gate:
    """A coroutine that is entered and never left by itself."""

    def __init__(self) -> None:
        self.entered, self.interrupted = asyncio.Event(), asyncio.Event()

    async def __call__(self, *_: Any, **__: Any) -> Any:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.interrupted.set()


class Admissions(InsecureAuthorizer):
    """Counts the requests that it admits, and can be made to wait."""

    seen: list[Admission]
    gate: Gate | None

    async def authorize(self, request: IncomingRequest) -> Admission:
        if self.gate is not None:
            await self.gate()
        admission = await super().authorize(request)
        self.seen.append(admission)
        return admission


@pytest.fixture
def admissions() -> type[Admissions]:
    return type("OwnAdmissions", (Admissions,), {"seen": [], "gate": None})


async def until(condition: Any) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def computed(server: Server) -> tuple[int, int]:
    stats = server.engine.stats
    return stats.prompt_tokens, stats.generated_tokens


async def test_while_the_body_arrives(tiny: Tiny, admissions: type[Admissions]) -> None:
    recorder = Recorder()
    async with serving(tiny, observer=recorder, authorizer=admissions) as server:
        tasks = len(asyncio.all_tasks())
        client = connect(server, request_bytes(BODY)[:-5])
        await until(lambda: len(asyncio.all_tasks()) > tasks)
        client.close()
        await nothing_left(server, tasks)
        assert not admissions.seen and not recorder.finished and computed(server) == (0, 0)


async def test_while_the_ticket_is_judged(tiny: Tiny, admissions: type[Admissions]) -> None:
    recorder, gate = Recorder(), Gate()
    admissions.gate = gate
    async with serving(tiny, observer=recorder, authorizer=admissions) as server:
        tasks = len(asyncio.all_tasks())
        client = connect(server, request_bytes(BODY))
        await asyncio.wait_for(gate.entered.wait(), SECONDS)
        client.close()
        await asyncio.wait_for(gate.interrupted.wait(), SECONDS)
        await nothing_left(server, tasks)
        assert not admissions.seen and not recorder.finished and computed(server) == (0, 0)


@pytest.mark.parametrize("closing", ["close", "half-close"])
@pytest.mark.parametrize("phase", ["tokenization", "grammar"])
async def test_while_its_work_is_prepared(
    tiny: Tiny, admissions: type[Admissions], monkeypatch: pytest.MonkeyPatch, phase: str, closing: str
) -> None:
    recorder, gate = Recorder(), Gate()
    owner, name = (PromptReader, "completion") if phase == "tokenization" else (GrammarCompiler, "compile")
    monkeypatch.setattr(owner, name, gate.__call__)
    body = BODY | ({"guided_regex": "[a-z]+", "ignore_eos": False} if phase == "grammar" else {})
    async with serving(tiny, observer=recorder, authorizer=admissions) as server:
        tasks = len(asyncio.all_tasks())
        client = connect(server, request_bytes(body))
        await asyncio.wait_for(gate.entered.wait(), SECONDS)
        if closing == "close":
            client.close()
        else:
            client.shutdown(socket.SHUT_WR)
        await until(lambda: recorder.finished)
        assert gate.interrupted.is_set()
        await nothing_left(server, tasks)
        client.close()
        [(request_id, usage, reason)] = recorder.finished
        assert (request_id, usage.total_tokens, reason) == (admissions.seen[0].request_id, 0, "cancelled")
        assert computed(server) == (0, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_while_its_adapter_is_loaded(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    recorder, loading, go_on = Recorder(), threading.Event(), threading.Event()
    async with serving(tiny, observer=recorder) as server:
        load = server.source.load

        def slowly(*arguments: Any, **options: Any) -> Any:
            loading.set()
            assert go_on.wait(SECONDS)
            return load(*arguments, **options)

        monkeypatch.setattr(server.source, "load", slowly)
        try:
            tasks = len(asyncio.all_tasks())
            client = connect(server, request_bytes(BODY | {"model": "r4", "stream": stream}))
            await until(loading.is_set)
            client.close()
            await until(lambda: recorder.finished)
            await server.idle()
        finally:
            go_on.set()
        await nothing_left(server, tasks)
        assert [(usage.completion_tokens, reason) for _, usage, reason in recorder.finished] == [(0, "cancelled")]
        assert computed(server)[1] == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_in_the_queue_and_in_its_prefill(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    recorder, computing, go_on = Recorder(), threading.Event(), threading.Event()
    async with serving(tiny, observer=recorder, max_batched_tokens=64) as server:
        runner = server.engine.runner
        launch = runner.launch

        def slowly(*arguments: Any, **options: Any) -> Any:
            computing.set()
            assert go_on.wait(SECONDS)
            return launch(*arguments, **options)

        monkeypatch.setattr(runner, "launch", slowly)
        try:
            tasks = len(asyncio.all_tasks())
            prefill = connect(server, request_bytes(BODY | {"prompt": [5] * 450, "max_tokens": 9, "stream": stream}))
            await until(computing.is_set)
            queued = connect(server, request_bytes(BODY | {"stream": stream}))
            await until(lambda: len(server.uvicorn.server_state.connections) == 2)
            prefill.close()
            queued.close()
            await until(lambda: not server.uvicorn.server_state.connections)
            await until(lambda: recorder.finished)
        finally:
            go_on.set()
        await nothing_left(server, tasks)
        assert {(usage.completion_tokens, reason) for _, usage, reason in recorder.finished} == {(0, "cancelled")}
        assert computed(server)[0] < 450 and computed(server)[1] == 0


@pytest.mark.parametrize("closing", ["close", "half-close"])
@pytest.mark.parametrize("stream", [False, True])
async def test_while_its_answer_is_computed(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, stream: bool, closing: str
) -> None:
    recorder, enough, go_on = Recorder(), threading.Event(), threading.Event()
    async with serving(tiny, observer=recorder) as server:
        runner, tasks, launches = server.engine.runner, len(asyncio.all_tasks()), []
        launch = runner.launch

        def slowly(*arguments: Any, **options: Any) -> Any:
            launches.append(1)
            if len(launches) == 6:
                enough.set()
                assert go_on.wait(SECONDS)
            return launch(*arguments, **options)

        monkeypatch.setattr(runner, "launch", slowly)
        try:
            client = connect(server, request_bytes(BODY | {"stream": stream}))
            await until(enough.is_set)
            if closing == "close":
                client.close()
            else:
                client.shutdown(socket.SHUT_WR)
            await until(lambda: recorder.finished)
        finally:
            go_on.set()
        await nothing_left(server, tasks)
        client.close()
        [(_, usage, reason)] = recorder.finished
        assert 0 < usage.completion_tokens <= 6 and reason == "cancelled"
        assert computed(server)[1] <= 8


async def test_a_request_cancelled_before_the_engine_knows_it_is_refused_and_reported(
    tiny: Tiny, admissions: type[Admissions], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, gate = Recorder(), Gate()
    monkeypatch.setattr(PromptReader, "completion", gate.__call__)
    async with serving(tiny, observer=recorder, authorizer=admissions) as server:
        asking = asyncio.create_task(server.http.post("/v1/completions", json=BODY))
        await asyncio.wait_for(gate.entered.wait(), SECONDS)
        admissions.seen[0].stopped.set()
        answer = await asyncio.wait_for(asking, SECONDS)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "cancelled")
        assert [reason for _, _, reason in recorder.finished] == ["cancelled"] and computed(server) == (0, 0)


async def test_an_admitted_request_that_is_refused_later_is_reported_once(tiny: Tiny) -> None:
    recorder = Recorder()
    async with serving(tiny, observer=recorder) as server:
        refused_at_once: list[dict[str, object]] = [{"n": 0}, {"prompt": []}]  # by the body alone: never admitted
        refused_later: list[dict[str, object]] = [
            {"prompt": [5] * 600},
            {"prompt": [10**6]},
            {"guided_regex": "(", "ignore_eos": False},
        ]
        for changes in refused_at_once + refused_later:
            assert (await server.http.post("/v1/completions", json=BODY | changes)).status_code == 400
        assert [(usage.total_tokens, reason) for _, usage, reason in recorder.finished] == [(0, "error")] * 3
