"""Two engines over one tiny model, with a platform's key, and real TLS between them."""

from __future__ import annotations

import contextlib
import socket
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.encoding import encode_base64url
from protocol.pulls import PullTicket, pull_ticket, sign_pull_ticket
from serving.core import Delta, Request
from serving.platform.kv_reader import HttpsTransport, KvReader
from serving.platform.kv_source import KvSource
from serving.platform.leases import LeaseTable
from serving.platform.receipts import ReceiptSigner
from serving.platform.tickets import TicketVerifier
from tests.serving.harness import Running, running
from tests.serving.tiny import ADAPTERS, Tiny

PLATFORM = Ed25519PrivateKey.generate()
KEYS = {"platform": PLATFORM.public_key().public_bytes_raw()}
PREDICTION = uuid.UUID(int=7)
SCOPE = "scope"


@dataclass
class Peer:
    """One replica's half: `run` is its engine."""

    run: Running
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    signer: ReceiptSigner = field(default_factory=lambda: ReceiptSigner("ab" * 32))
    tickets: TicketVerifier = field(default_factory=TicketVerifier)
    leases: LeaseTable = field(default_factory=LeaseTable)

    def __post_init__(self) -> None:
        self.tickets.adopt(str(self.id), KEYS)

    @property
    def key(self) -> str:
        return encode_base64url(self.signer.public_bytes())

    def lease(self, digest: str | None) -> None:
        if digest is not None:
            self.leases.renew(asked_at=self.leases.now())
            assert self.leases.grant(str(uuid.uuid4()), digest, asked_at=self.leases.now())

    def layout(self) -> str:
        return self.run.engine.planner.exchange.layout


@dataclass
class Pair:
    """A source of KV, and a reader."""

    source: Peer
    reader: Peer
    server: KvSource
    client: KvReader

    def ticket(self, adapter: str | None = None, *, scope: str = SCOPE, **changes: Any) -> PullTicket:
        arguments: dict[str, Any] = {
            "jti": uuid.uuid4(),
            "attempt": 1,
            "source_id": self.source.id,
            "source_url": f"https://127.0.0.1:{self.server.port}",
            "source_key": self.source.key,
            "reader_id": self.reader.id,
            "reader_key": self.reader.key,
            "adapter": self.source.run.digest(adapter),
            "cache_scope": scope,
        }
        return pull_ticket(**arguments | changes)

    def counts(self) -> tuple[int, int]:
        """Blocks that were lent and placed so far."""
        lent, placed = (one.run.engine.planner.exchange.counts for one in (self.source, self.reader))
        return lent.lent_blocks, placed.placed_blocks

    async def prefill(self, request: Request) -> int:
        """Have the source compute the prompt alone; return how many of its tokens it had."""
        self.source.lease(request.adapter.digest)
        alone = replace(request, request_id=f"{request.request_id}-alone", max_tokens=0)
        return (await self.source.run.run(alone))[-1].usage.cached_tokens

    async def bring(self, request: Request, ticket: PullTicket) -> Request:
        return await self.client.bring(request, ticket, sign_pull_ticket(ticket, PLATFORM, kid="platform"))

    async def answer(self, request: Request, adapter: str | None = None, **changes: Any) -> list[Delta]:
        """Prefill at the source, pull, decode at the reader."""
        cached = await self.prefill(request)
        brought = await self.bring(request, self.ticket(adapter, **changes))
        brought = replace(brought, cached_as=max(cached, brought.cached_as or 0))
        return await self.reader.run.run(brought)


@contextlib.asynccontextmanager
async def pair(tiny: Tiny, reader_settings: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Pair]:
    async with running(tiny, **settings) as one, running(tiny, **settings | (reader_settings or {})) as other:
        for run, name in ((run, name) for run in (one, other) for name in ADAPTERS):
            run.digest(name)  # a folder is loaded by a digest that was asked for by name
        source, reader = Peer(one), Peer(other)
        listener = socket.create_server(("127.0.0.1", 0))
        server = KvSource(one.engine, source.tickets, source.leases, source.signer, source.layout(), listener)
        client = KvReader(other.engine, HttpsTransport(reader.signer), reader.layout())
        server.start()
        try:
            yield Pair(source, reader, server, client)
        finally:
            client.close()
            server.close()
