"""`/admin/*`: the platform's commands to a replica (docs/protocol.md section 2). Every call needs its own ticket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from protocol.admin import (
    ADMIN_PATH,
    CALLS,
    Cancelled,
    CancelRequest,
    Conversation,
    Conversations,
    ConversationsRequest,
    Draining,
    ForgetRequest,
    Forgotten,
    JournalAnswer,
    JournalRequest,
    JournalState,
    Prefetched,
    PrefetchRequest,
    Pulling,
    PullOrders,
    ReplicaFigures,
    ReplicaStats,
    Revocation,
    RevokeRequest,
    Verification,
    VerifyRequest,
)
from protocol.bodies import MAX_MESSAGE_BYTES
from protocol.encoding import decode_base64url, encode_base64url
from protocol.errors import ProtocolError
from protocol.fleet import LoadNow
from protocol.messages import Answer, Empty, decode, encode
from protocol.pulls import PullTicket
from protocol.tickets import TICKET_HEADER, Action
from serving.engine import Engine
from serving.http.errors import ApiError
from serving.http.wire import read_body
from serving.platform.errors import PlatformError, TicketRefused
from serving.platform.fleet_views import Snapshot
from serving.platform.kv_reader import KvReader
from serving.platform.leases import LeaseTable
from serving.platform.predictions import PredictionDesk
from serving.platform.tickets import TicketVerifier
from serving.platform.verify import Verifier


class Administration:
    """The handlers of the calls, which run in the server's event loop."""

    def __init__(
        self,
        engine: Engine,
        tickets: TicketVerifier,
        leases: LeaseTable,
        desk: PredictionDesk,
        verifier: Verifier,
        reader: KvReader,
    ) -> None:
        self._engine, self._tickets, self._leases = engine, tickets, leases
        self._desk, self._verifier, self._reader = desk, verifier, reader
        self._pulling: set[asyncio.Task[None]] = set()

    def routes(self) -> Sequence[Route]:
        """Return the routes for `create_app`."""
        handlers: dict[Action, Callable[[Any], Awaitable[Answer]]] = {
            "verify": self.verify,
            "revoke": self.revoke,
            "prefetch": self.prefetch,
            "forget": self.forget,
            "cancel": self.cancel,
            "journal": self.journal,
            "stats": self.stats,
            "drain": self.drain,
            "conversations": self.conversations,
            "pull": self.pull,
        }
        return [self._route(action, handle) for action, handle in handlers.items()]

    def _route(self, action: Action, handle: Callable[[Any], Awaitable[Answer]]) -> Route:
        kind, _ = CALLS[action]

        async def endpoint(request: Request) -> Response:
            raw = await read_body(request.scope, request.receive, MAX_MESSAGE_BYTES)
            try:
                self._tickets.verify(request.headers.get(TICKET_HEADER), raw, action=action)
            except TicketRefused as error:
                raise ApiError(401, str(error), code=error.code) from None
            except PlatformError as error:
                raise ApiError(503, str(error), code=error.code) from None
            try:
                message = decode(raw, kind)
            except ProtocolError as error:
                raise ApiError(400, str(error), code="bad_request") from None
            return Response(encode(await handle(message)), media_type="application/json")

        return Route(ADMIN_PATH.format(action=action), endpoint, methods=["POST"])

    async def verify(self, message: VerifyRequest) -> Verification:
        """Verify a package. A failed lease or download is a 503, because it is no fault of the adapter."""
        try:
            return await self._verifier.verify(message.digest)
        except PlatformError as error:
            raise ApiError(503, str(error), code=error.code) from None

    async def revoke(self, message: RevokeRequest) -> Revocation:
        """Refuse, abort, evict and zero the adapters, then answer."""
        pending = [asyncio.wrap_future(self._engine.revoke(digest)) for digest in message.digests]
        self._leases.revoke(message.digests)  # new leases on these digests are refused from here on
        return Revocation(list(message.digests), aborted=sum(await asyncio.gather(*pending)))

    async def prefetch(self, message: PrefetchRequest) -> Prefetched:
        """Load adapters that may be needed soon, if no request suffers. Does not wait for the loads."""
        self._engine.adapters.hint(message.digests)
        return Prefetched(len(message.digests))

    async def forget(self, message: ForgetRequest) -> Forgotten:
        """Forget what the scopes left in memory and on disk, then answer."""
        await asyncio.gather(*(asyncio.wrap_future(self._engine.forget(scope)) for scope in message.scopes))
        return Forgotten(list(message.scopes))

    async def cancel(self, message: CancelRequest) -> Cancelled:
        """Stop one attempt; its stream ends with a receipt. An unknown one is no error: it may have ended."""
        self._desk.cancel(message.jti, message.attempt, message.delivered_tokens)
        return Cancelled(message.jti)

    async def journal(self, message: JournalRequest) -> JournalAnswer:
        """Return the states of predictions."""

        def states() -> list[JournalState]:
            return [JournalState(*self._desk.state(key.jti, key.attempt)) for key in message.predictions]

        return JournalAnswer(await asyncio.to_thread(states))

    async def stats(self, message: Empty) -> ReplicaStats:
        """Return the engine's figures."""
        return replica_stats(self._engine, self._leases, self._verifier.missing)

    async def conversations(self, message: ConversationsRequest) -> Conversations:
        """Return the conversations that were used last: their next home pulls them from here."""
        found = await asyncio.wrap_future(self._engine.exchange(lambda one: one.hottest(message.most)))
        return Conversations(
            [
                Conversation(content.scope or "", content.digest, encode_base64url(content.key), tokens)
                for content, tokens in found
            ]
        )

    async def pull(self, message: PullOrders) -> Pulling:
        """Pull conversations that another replica hands over. Does not wait for them."""
        orders = []
        for order in message.orders:
            with contextlib.suppress(TicketRefused, ProtocolError):  # hints: one that is wrong is no error
                ticket = self._tickets.verify_pull(order.ticket)
                orders.append((ticket, order.ticket, decode_base64url(order.key)))
        pulling = asyncio.create_task(self._pull_all(orders))
        self._pulling.add(pulling)
        pulling.add_done_callback(self._pulling.discard)
        return Pulling(len(orders))

    async def _pull_all(self, orders: list[tuple[PullTicket, str, bytes]]) -> None:
        for ticket, token, key in orders:  # one at a time: nobody waits for them
            await self._reader.fetch(ticket, token, key)

    async def drain(self, message: Empty) -> Draining:
        """Refuse new predictions from now on; running ones finish."""
        self._engine.drain()
        return Draining(True)


# The digest of no adapter: its cost is that of a typical one.
_UNKNOWN = ""
_PROMPT = 256  # tokens of a prompt by which one is judged
_MOST_PREFIXES = 8_192  # of a view


def replica_stats(engine: Engine, leases: LeaseTable, confinement_missing: list[str]) -> ReplicaStats:
    """Return what /admin/stats reports."""
    figures = msgspec.structs.asdict(replica_figures(engine, confinement_missing))
    return ReplicaStats(**figures, resident=_resident(engine), leased=leases.digests())


def replica_figures(engine: Engine, confinement_missing: list[str]) -> ReplicaFigures:
    """Return the figures that the platform keeps of this replica."""
    stats, exchange = engine.stats, engine.planner.exchange
    return ReplicaFigures(
        steps=stats.steps,
        max_adapters_in_one_batch=stats.max_adapters_in_one_batch,
        batches_with_several_adapters=stats.batches_with_several_adapters,
        prompt_tokens=stats.prompt_tokens,
        generated_tokens=stats.generated_tokens,
        finished=stats.finished,
        failed=stats.failed,
        running=stats.running,
        waiting=stats.waiting,
        kv_blocks_used=stats.kv_blocks_used,
        kv_blocks_total=stats.kv_blocks_total,
        prefix_lookup_tokens=stats.prefix_lookup_tokens,
        prefix_hit_tokens=stats.prefix_hit_tokens,
        seats=engine.planner.limits.max_num_seqs,
        waits=engine.admission.waits(),
        load_seconds=engine.adapters.cost(_UNKNOWN).seconds,
        draining=engine.draining,
        prefill_seconds=engine.planner.costs.prefill_seconds(1000, 0, engine.planner.limits.max_batched_tokens),
        kv_token_bytes=exchange.block_bytes // exchange.block_tokens,
        pull_rate=exchange.counts.pulled_rate,
        confinement_missing=tuple(confinement_missing),
    )


def load_now(engine: Engine) -> LoadNow:
    """Return the load that views and answers tell. Safe from any thread."""
    interactive, standard, batch = (min(max(wait, 0.0), 1e6) for wait in engine.admission.waits())
    seats, stats = engine.planner.limits.max_num_seqs, engine.stats
    return LoadNow(seats, stats.running, stats.waiting, interactive, standard, batch, engine.draining)


def snapshot(engine: Engine, confinement_missing: list[str]) -> Snapshot:
    """Return this replica as the fleet link tells of it. Safe from any thread."""
    near = engine.adapters.near()
    costs, limits = engine.planner.costs, engine.planner.limits
    return Snapshot(
        load=load_now(engine),
        figures=replica_figures(engine, confinement_missing),
        load_seconds=engine.adapters.cost(_UNKNOWN).seconds,
        near_seconds=engine.adapters.cost(near[0]).seconds if near else 0.0,
        token_seconds=costs.prefill_seconds(_PROMPT, 0, limits.max_batched_tokens) / _PROMPT,
        adapters=_resident(engine),
        near=near,
        prefixes=engine.conversations.held(_MOST_PREFIXES),
    )


def _resident(engine: Engine) -> list[str]:
    return sorted(digest for digest, state in engine.adapters.states().items() if state == "ready")
