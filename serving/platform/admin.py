"""`/admin/*`: what the platform may tell a replica to do (docs/protocol.md section 2). Every call shows a ticket for
it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.engine import Engine
from serving.http.errors import ApiError, json_response
from serving.platform.errors import PlatformError, TicketRefused
from serving.platform.leases import LeaseTable
from serving.platform.predictions import TICKET_HEADER, PredictionDesk
from serving.platform.tickets import TicketVerifier
from serving.platform.verify import Verifier

MAX_BODY_BYTES = 1 << 20
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Body = TypeVar("Body", bound=msgspec.Struct)


class VerifyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`{"digest"}`"""

    digest: Digest


class RevokeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`{"digests": [...]}`"""

    digests: Annotated[list[Digest], msgspec.Meta(max_length=10_000)]


class PrefetchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`{"digests": [...]}`, most wanted first"""

    digests: Annotated[list[Digest], msgspec.Meta(max_length=1_000)]


class PredictionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`{"jti"}`"""

    jti: Annotated[str, msgspec.Meta(max_length=64)]


class EmptyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`{}`"""


class Administration:
    """Carries out the calls. Lives in the server's event loop."""

    def __init__(
        self, engine: Engine, tickets: TicketVerifier, leases: LeaseTable, desk: PredictionDesk, verifier: Verifier
    ) -> None:
        self._engine, self._tickets, self._leases = engine, tickets, leases
        self._desk, self._verifier = desk, verifier

    def routes(self) -> Sequence[Route]:
        """Return the routes for `create_app`."""
        return [
            self._route("verify", VerifyBody, self.verify),
            self._route("revoke", RevokeBody, self.revoke),
            self._route("prefetch", PrefetchBody, self.prefetch),
            self._route("cancel", PredictionBody, self.cancel),
            self._route("journal", PredictionBody, self.journal),
            self._route("stats", EmptyBody, self.stats),
            self._route("drain", EmptyBody, self.drain),
        ]

    def _route(self, action: str, kind: type[Body], handle: Callable[[Body], Awaitable[dict[str, Any]]]) -> Route:
        async def endpoint(request: Request) -> Response:
            raw = await _read(request)
            try:
                self._tickets.verify(request.headers.get(TICKET_HEADER), raw, action=action)
            except TicketRefused as error:
                raise ApiError(401, str(error), code=error.code) from None
            except PlatformError as error:
                raise ApiError(503, str(error), code=error.code) from None
            try:
                body = msgspec.json.decode(raw, type=kind)
            except msgspec.DecodeError as error:
                raise ApiError(400, str(error), code="bad_request") from None
            return json_response(await handle(body))

        return Route(f"/admin/{action}", endpoint, methods=["POST"])

    async def verify(self, body: VerifyBody) -> dict[str, Any]:
        """Verify a package. A lease or download that cannot be had is a 503: it says nothing about the adapter."""
        try:
            return await self._verifier.verify(body.digest)
        except PlatformError as error:
            raise ApiError(503, str(error), code=error.code) from None

    async def revoke(self, body: RevokeBody) -> dict[str, Any]:
        """Refuse, abort, evict and zero; answers when it is done."""
        pending = [asyncio.wrap_future(self._engine.revoke(digest)) for digest in body.digests]
        self._leases.revoke(body.digests)  # from here on no lease on them is accepted either
        return {"revoked": list(body.digests), "aborted": sum(await asyncio.gather(*pending))}

    async def prefetch(self, body: PrefetchBody) -> dict[str, Any]:
        """Load what may be asked for soon, where that costs nobody. Does not wait for it."""
        self._engine.adapters.hint(body.digests)
        return {"hinted": len(body.digests)}

    async def cancel(self, body: PredictionBody) -> dict[str, Any]:
        """Stop one prediction; its stream ends with a receipt. An unknown one is no error: it may just have ended."""
        self._engine.cancel(body.jti)
        return {"jti": body.jti}

    async def journal(self, body: PredictionBody) -> dict[str, Any]:
        """Tell what became of a prediction."""
        state, receipt = await asyncio.to_thread(self._desk.state, body.jti)
        return {"state": state, "receipt": receipt}

    async def stats(self, body: EmptyBody) -> dict[str, Any]:
        """Return the engine's figures."""
        return engine_figures(self._engine, self._leases)

    async def drain(self, body: EmptyBody) -> dict[str, Any]:
        """Refuse new predictions from now on; running ones finish."""
        self._engine.drain()
        return {"draining": True}


def engine_figures(engine: Engine, leases: LeaseTable) -> dict[str, Any]:
    """Return what heartbeats and /admin/stats report: plain numbers since start, and what is resident and leased."""
    stats = engine.stats
    return {
        "steps": stats.steps,
        "max_adapters_in_one_batch": stats.max_adapters_in_one_batch,
        "batches_with_several_adapters": stats.batches_with_several_adapters,
        "prompt_tokens": stats.prompt_tokens,
        "generated_tokens": stats.generated_tokens,
        "finished": stats.finished,
        "failed": stats.failed,
        "running": stats.running,
        "waiting": stats.waiting,
        "kv_blocks_used": stats.kv_blocks_used,
        "kv_blocks_total": stats.kv_blocks_total,
        "resident": sorted(digest for digest, state in engine.adapters.states().items() if state == "ready"),
        "leased": leases.digests(),
    }


async def _read(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ApiError(413, "The body is too large.", code="request_too_large")
    return bytes(body)
