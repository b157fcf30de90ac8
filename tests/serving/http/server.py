"""A real uvicorn server on loopback around a tiny engine, and the unmodified openai client against it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai

from serving.about import about_route
from serving.adapters.directory import DirectoryAdapterSource
from serving.config import ServingConfig
from serving.core import Usage
from serving.engine import Engine
from serving.http.admission import UNKNOWN, Admission, Ending, IncomingRequest, InsecureAuthorizer
from serving.http.app import create_app
from serving.http.server import DrainingServer, limit_stalls, make_server
from serving.replica import Base, build_engine
from tests.serving.tiny import Tiny


class Recorder:
    """An observer that remembers what it was told and returns a receipt."""

    def __init__(self) -> None:
        self.progress: list[tuple[str, Usage]] = []
        self.finished: list[tuple[str, Usage, str]] = []
        self.answers: list[int | None] = []
        self.endings: list[Ending] = []

    def on_progress(self, request_id: str, usage: Usage) -> None:
        self.progress.append((request_id, usage))

    def checkpoint(self, request_id: str, usage: Usage, shown: int) -> str | None:
        return None

    async def on_finish(
        self, request_id: str, usage: Usage, finish_reason: str, ending: Ending = UNKNOWN
    ) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        self.finished.append((request_id, usage, finish_reason))
        self.answers.append(ending.answer)
        self.endings.append(ending)
        return {"receipt": f"{request_id}:{usage.completion_tokens}"}


class LimitedAuthorizer(InsecureAuthorizer):
    """Grants at most 20 prompt tokens and 5 new ones."""

    async def authorize(self, request: IncomingRequest) -> Admission:
        admission = await super().authorize(request)
        return Admission(admission.request_id, admission.tenant, admission.cache_scope, admission.adapter, None, 20, 5)


class BudgetAuthorizer(InsecureAuthorizer):
    """Grants 6 new tokens to a request that may ask for more, in class batch."""

    async def authorize(self, request: IncomingRequest) -> Admission:
        admission = await super().authorize(request)
        return dataclasses.replace(admission, max_tokens=6, latency_class="batch", stop_at_grant=True)


class GenerousAuthorizer(InsecureAuthorizer):
    """Grants more new tokens than a completion has by default."""

    async def authorize(self, request: IncomingRequest) -> Admission:
        admission = await super().authorize(request)
        return Admission(admission.request_id, admission.tenant, admission.cache_scope, admission.adapter, None, 99, 40)


@dataclass(frozen=True)
class Server:
    """`url` without a trailing slash."""

    url: str
    engine: Engine
    source: DirectoryAdapterSource
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI
    uvicorn: DrainingServer

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.url.rsplit(":", 1)[1])

    async def idle(self) -> None:
        for _ in range(500):
            if not self.engine._active:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("requests are still active")


@contextlib.asynccontextmanager
async def serving(
    tiny: Tiny,
    *,
    observer: Recorder | None = None,
    authorizer: type[InsecureAuthorizer] = InsecureAuthorizer,
    stall_s: float = 60.0,
    **settings: Any,
) -> AsyncIterator[Server]:
    settings = {"kv_cache_mb": 4, "adapter_memory_mb": 8, "threads": 1, "dtype": "float32", "device": "cpu"} | settings
    config = ServingConfig(model=tiny.model, adapters=tiny.adapters, **settings)
    base = Base.from_dir(tiny.model)
    source = DirectoryAdapterSource(tiny.adapters, base.spec)
    engine = build_engine(config, base, source)
    app = create_app(
        engine,
        base.tokenizer,
        authorizer=authorizer(source, 60),
        contracts=source,
        observer=observer,
        extra_routes=[about_route(config, base, engine)],
        max_body_bytes=config.max_body_bytes,
    )
    server = make_server(app, engine, 1)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        limit_stalls(listener, stall_s)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        task = asyncio.create_task(server.serve([listener]))
        try:
            while not (server.started and engine.ready.is_set()):
                assert not task.done()
                await asyncio.sleep(0.01)
            async with (
                httpx.AsyncClient(base_url=url, timeout=30) as http,
                openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client,
            ):
                yield Server(url, engine, source, http, client, server)
        finally:
            server.should_exit = True
            await task
