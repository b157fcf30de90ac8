"""The gateway's ASGI app: `/v1/*`. Owns the async pools for the life of the web process."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from psycopg_pool import AsyncConnectionPool
from redis.asyncio import Redis

from billing.statements import STATEMENT_SECONDS
from marketplace.accounts.errors import NotAllowed, NotFound, Refusal
from marketplace.gateway import errors, side_routes
from marketplace.gateway.attack_guards import AttackGuards
from marketplace.gateway.background.routes import PATHS as BACKGROUND_PATHS
from marketplace.gateway.books import AWAY, Books
from marketplace.gateway.delivery_log import DeliveryLog
from marketplace.gateway.demand import DemandCounts
from marketplace.gateway.effects import Effects
from marketplace.gateway.errors import method_not_allowed, unavailable
from marketplace.gateway.features import Features
from marketplace.gateway.fleet.endpoint import PATH as FLEET_LINKS
from marketplace.gateway.fleet.service import FleetService
from marketplace.gateway.guarding import Guarding
from marketplace.gateway.http import Receive, Scope, Send, headers_of, send_json, start_response
from marketplace.gateway.metrics import count_refusal, count_request
from marketplace.gateway.offers import Offers
from marketplace.gateway.prediction import Parts
from marketplace.gateway.prefill import Prefills
from marketplace.gateway.presence import Presence
from marketplace.gateway.principals import Authenticator
from marketplace.gateway.protection import Protection
from marketplace.gateway.quotes import Quotes
from marketplace.gateway.ratelimit import RateLimiter
from marketplace.gateway.refusals import Refusals
from marketplace.gateway.replays import Replays
from marketplace.gateway.replicas import Replicas
from marketplace.gateway.responses.kept import RESPONSES_PATH
from marketplace.gateway.routes import Routes
from marketplace.gateway.runs import RUNS_PATH, Runs
from marketplace.gateway.thumbs import FEEDBACK_PATH
from marketplace.gateway.tracing import begin_trace
from marketplace.gateway.waking import Waking
from marketplace.gateway.writer import Writer
from marketplace.vault.signing import load_ticket_signer
from protocol.errors import ClientGone
from protocol.origins import answer_headers, preflight_headers
from protocol.request_ids import REQUEST_ID_HEADER, request_id_from
from protocol.tracing import Spans, spans_of

logger = logging.getLogger(__name__)

PREDICTION_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
POSTED = dict.fromkeys((*PREDICTION_PATHS, "/v1/quote"), Routes.predict) | {
    FEEDBACK_PATH: side_routes.feedback,
    "/v1/moderations": side_routes.moderate,
    RESPONSES_PATH: Routes.respond,
}
# Paths with others below them, whose methods their handlers know.
OWN_THINGS = {RUNS_PATH: side_routes.runs, RESPONSES_PATH: side_routes.kept_responses}
STOP_SECONDS = 5.0  # for verdicts that are still on their way into the books


class Gateway:
    """Raw ASGI callable. Its parts are made at lifespan start, so importing it costs nothing."""

    def __init__(self) -> None:
        self._routes: Routes | None = None
        self._offers = Offers()
        self._quotes = Quotes()
        self._replays = Replays()
        self._authenticator = Authenticator(pepper=settings.ENV.api_key_pepper)
        self._tasks: list[asyncio.Task[None]] = []  # for the life of the process
        self._valkey: Redis | None = None
        self._refusals: Refusals | None = None
        self._spans: Spans | None = None
        self._fleet: FleetService | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["path"] == FLEET_LINKS:
            await self._fleet_link(scope, receive, send)
            return
        request_id = request_id_from(headers_of(scope).get(REQUEST_ID_HEADER.encode(), b"").decode("latin-1"))
        origin = headers_of(scope).get(b"origin", b"").decode("latin-1")
        headers = {REQUEST_ID_HEADER: request_id, **answer_headers(origin, settings.ENV.cors_origins)}
        trace = begin_trace(self._spans, scope)
        outcome, code = "failed", "fault"  # of an exception that nobody expected
        try:
            await self._route(scope, receive, send, headers)
            outcome, code = "ok", ""
        except Refusal as refusal:
            if refusal.status == 500:  # a fault of the platform: the server logs it and answers without detail
                raise
            outcome, code = "failed" if refusal.status > 500 else "refused", refusal.code
            count_refusal(refusal.code)
            if self._refusals is not None:
                self._refusals.count(scope, refusal)
            if not refusal.told:
                await _refuse(send, refusal, headers)
        except ClientGone:
            outcome, code = "gone", "client_gone"
        except AWAY as error:
            code = "database"
            logger.error("request %s: database: %s", request_id, error)
            away = unavailable("The platform's database is away. Nothing was charged; try again.", code="database")
            await _refuse(send, away, headers)
        finally:
            if scope["path"] in PREDICTION_PATHS:
                count_request(outcome)
            if trace is not None:
                trace.end(error=code)

    async def _route(self, scope: Scope, receive: Receive, send: Send, headers: dict[str, str]) -> None:
        path = scope["path"]
        method = scope["method"]
        if method == "OPTIONS" and settings.ENV.cors_origins:
            await _preflight(scope, send, headers)
        elif path in POSTED:
            if method != "POST":
                raise method_not_allowed(path, "POST")
            await POSTED[path](self._ready, scope, receive, send, headers)
        elif (handler := OWN_THINGS.get("/".join(path.split("/", 3)[:3]))) is not None:
            await send_json(send, 200, await handler(self._ready, scope, receive, headers), headers)
        elif BACKGROUND_PATHS.fullmatch(path):
            await side_routes.background(self._ready, scope, receive, send, headers)
        elif path == "/healthz":
            async with self._ready.parts.books.database.connection() as connection:
                await connection.execute("SELECT 1")
            await send_json(send, 200, b'{"status":"ok"}', headers)
        elif path == "/v1/models" or path.startswith("/v1/models/"):
            if method != "GET":
                raise method_not_allowed(path, "GET")
            name = path.removeprefix("/v1/models").removeprefix("/")
            await send_json(send, 200, await side_routes.models(self._ready, scope, name, headers), headers)
        else:
            raise NotFound(f"There is no {path}; see /v1/chat/completions and /v1/models.")

    async def _fleet_link(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._fleet is None:
            await send_json(send, 503, b'{"error":{"code":"starting","message":"the platform is starting"}}')
        else:
            await self._fleet.endpoint(scope, receive, send)

    @property
    def _ready(self) -> Routes:
        if self._routes is None:
            raise unavailable("The platform is starting. Try again in a moment.", code="starting", retry_after=1)
        return self._routes

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self._start()
                except Exception as error:
                    logger.exception("the gateway cannot start")
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self._stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _start(self) -> None:
        self._spans = spans_of("intarsia-gateway")
        signer = await sync_to_async(load_ticket_signer)()
        database: AsyncConnectionPool[Any] = AsyncConnectionPool(
            settings.ENV.database_url,
            kwargs={"autocommit": True, "options": f"-c statement_timeout={STATEMENT_SECONDS}s"},
            min_size=2,
            max_size=10,  # for what caches do not have and for the ends that are no settlements
            timeout=5,
            open=False,
            # After a database restart every pooled connection is dead: test one before lending it.
            check=AsyncConnectionPool.check_connection,
        )
        await database.open(wait=True, timeout=10)
        books = Books(database, Writer(settings.ENV.database_url), uuid.uuid4())
        presence = Presence(books, settings.ENV.delivery_dir)
        await presence.beat()  # before the first hold, which a silent gateway's would be
        parts = Parts(
            books=books,
            replicas=Replicas(),
            pools=self._offers.pools,
            signer=signer,
            log=DeliveryLog(settings.ENV.delivery_dir, books.gateway_id),
            effects=Effects(),
        )
        self._valkey = Redis.from_url(settings.ENV.valkey_url, socket_timeout=1, socket_connect_timeout=1)
        self._refusals = Refusals(self._valkey)
        demand = DemandCounts(self._valkey, parts.effects)
        self._routes = Routes(
            parts=parts,
            authenticator=self._authenticator,
            limiter=RateLimiter(self._valkey, settings.ENV.rate_limit),
            offers=self._offers,
            quotes=self._quotes,
            replays=self._replays,
            guarding=Guarding(self._valkey),
            protection=Protection(self._valkey, books),
            attack_guards=AttackGuards(self._offers, self._valkey),
            calls=Runs(),
            features=Features(),
            prefills=Prefills(self._offers),
            waking=Waking(self._offers, demand),
        )
        self._fleet = FleetService(database, settings.ENV.valkey_url, self._offers.pools.hear)
        self._fleet.start()
        self._tasks = [
            asyncio.create_task(demand.run()),
            asyncio.create_task(presence.run()),
            asyncio.create_task(self._authenticator.keep_fresh(database)),
        ]

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._fleet is not None:
            await self._fleet.close()
            self._fleet = None
        if self._routes is not None:
            parts, guarding = self._routes.parts, self._routes.guarding
            await parts.books.close(STOP_SECONDS)
            parts.replicas.close()
            parts.log.close()
            await parts.books.database.close()
            guarding.close()
            self._routes = None
        if self._valkey is not None:
            await self._valkey.aclose()
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)


async def _preflight(scope: Scope, send: Send, headers: dict[str, str]) -> None:
    """Answer a browser that asks before a page's request. Raises Refusal 403 for a page that may not call."""
    given = headers_of(scope)
    origin, wanted = (given.get(name, b"").decode("latin-1") for name in (b"origin", b"access-control-request-headers"))
    answer = preflight_headers(origin, wanted, settings.ENV.cors_origins)
    if answer is None:
        raise NotAllowed("Pages of this origin may not call the API.", code="origin_not_allowed")
    await start_response(send, 204, headers | answer)
    await send({"type": "http.response.body", "body": b""})


async def _refuse(send: Send, refusal: Refusal, headers: dict[str, str]) -> None:
    body = errors.body(refusal, headers[REQUEST_ID_HEADER])
    await send_json(send, refusal.status, body, {**headers, **refusal.headers})
