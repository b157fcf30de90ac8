"""Both ends of fleet links: servers of gateways in this loop, and the replica's thread with a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import uvicorn

from marketplace.gateway.app import Gateway
from marketplace.gateway.fleet.service import FleetService
from protocol.admin import ReplicaFigures
from protocol.fleet import LoadNow
from protocol.http1 import EdgeProtocol
from serving.platform.fleet_link import Acts, FleetLink
from serving.platform.fleet_views import Snapshot
from serving.platform.leases import LeaseTable

FIGURES = ReplicaFigures(
    steps=0,
    max_adapters_in_one_batch=0,
    batches_with_several_adapters=0,
    prompt_tokens=0,
    generated_tokens=0,
    finished=0,
    failed=0,
    running=3,
    waiting=0,
    kv_blocks_used=0,
    kv_blocks_total=8,
)


@dataclass
class Process:
    """One gateway and its server."""

    gateway: Gateway
    server: uvicorn.Server
    url: str
    serving: asyncio.Task[None]

    @property
    def fleet(self) -> FleetService:
        assert self.gateway._fleet is not None
        return self.gateway._fleet

    async def stop(self) -> None:
        self.server.should_exit = True
        await self.serving


@contextlib.asynccontextmanager
async def process() -> AsyncIterator[Process]:
    """A gateway process's server, on a port of its own."""
    gateway = Gateway()
    config = uvicorn.Config(gateway, port=0, log_level="warning", lifespan="on", http=EdgeProtocol)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        assert not serving.done()
        await asyncio.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    made = Process(gateway, server, url, serving)
    try:
        yield made
    finally:
        await made.stop()


@dataclass
class Replica:
    """The replica's end: its real thread and leases, and what its engine would have done."""

    url: str
    token: str
    now: Snapshot = field(default_factory=lambda: Snapshot(LoadNow(seats=8), FIGURES))
    dropped: list[str] = field(default_factory=list)
    hinted: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.leases = LeaseTable()
        self.leases.on_end = self.ended.append
        acts = Acts(lambda: self.now, drop=self._drop, prefetch=self.hinted.extend)
        self.link = FleetLink(self.url, self.leases, acts)

    def tells(self, **changes: object) -> None:
        """Change what is told from here on."""
        self.now = replace(self.now, **changes)  # type: ignore[arg-type]

    def _drop(self, digests: Sequence[str]) -> list[Future[int]]:
        self.dropped += digests
        done: Future[int] = Future()
        done.set_result(0)
        return [done for _ in digests]


@contextlib.asynccontextmanager
async def linked(url: str, token: str) -> AsyncIterator[Replica]:
    """A replica with a link, which was renewed."""
    replica = Replica(url, token)
    replica.link.start()
    replica.link.use(token)
    try:
        await until(lambda: replica.link.fresh)
        yield replica
    finally:
        await asyncio.to_thread(replica.link.close)


async def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to that"
        await asyncio.sleep(0.01)
