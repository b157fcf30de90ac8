"""Runs a real engine in its own thread for the length of a `async with`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from serving.adapters.directory import DirectoryAdapterSource
from serving.config import ServingConfig
from serving.core import AdapterRef, Delta, Request, SamplingParams
from serving.engine import Engine
from serving.replica import Base, build_engine
from tests.serving.tiny import Tiny

_ids = itertools.count()
GREEDY = SamplingParams(temperature=0, ignore_eos=True)


@dataclass(frozen=True)
class Running:
    """An engine that accepts requests, and the names of its adapters."""

    engine: Engine
    source: DirectoryAdapterSource

    def digest(self, name: str | None) -> str | None:
        digest = None if name is None else self.source.resolve(name)
        assert name is None or digest is not None
        return digest

    def request(
        self,
        prompt: Iterable[int],
        adapter: str | None = None,
        *,
        tokens: int = 12,
        sampling: SamplingParams = GREEDY,
        scope: str = "scope",
        tenant: str = "tenant",
        deadline: float | None = None,
    ) -> Request:
        ref = AdapterRef(self.digest(adapter))
        return Request(f"request-{next(_ids)}", tenant, scope, ref, tuple(prompt), sampling, tokens, deadline)

    async def run(self, request: Request) -> list[Delta]:
        return [delta async for delta in self.engine.submit(request)]

    async def tokens(self, prompt: Iterable[int], adapter: str | None = None, **kwargs: Any) -> list[int]:
        deltas = await self.run(self.request(prompt, adapter, **kwargs))
        return [token for delta in deltas for token in delta.token_ids]

    async def settled(self) -> None:
        """Returns when nothing runs or waits any more."""
        for _ in range(500):
            planner = self.engine.planner
            if not planner.running and not planner.waiting and not self.engine._active:
                planner.check_integrity()
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the engine did not come to rest")


@contextlib.asynccontextmanager
async def running(tiny: Tiny, **settings: Any) -> AsyncIterator[Running]:
    settings = {"kv_cache_mb": 4, "adapter_memory_mb": 8, "threads": 1, "dtype": "float32", "device": "cpu"} | settings
    config = ServingConfig(model=tiny.model, adapters=tiny.adapters, **settings)
    base = Base.from_dir(tiny.model)
    source = DirectoryAdapterSource(tiny.adapters, base.spec)
    engine = build_engine(config, base, source)
    engine.start()
    try:
        yield Running(engine, source)
    finally:
        await asyncio.to_thread(engine.stop)
