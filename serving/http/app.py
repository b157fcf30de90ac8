"""The application: OpenAI routes, health, metrics. The platform adds its own routes through `extra_routes`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from protocol.requests.bodies import ChatBody, CompletionBody, EmbeddingBody
from protocol.tracing import spans_of
from serving.adapters.contracts import ContractSource
from serving.constraints import GrammarCompiler
from serving.engine import Engine
from serving.http.admission import CompletionObserver, RequestAuthorizer, SilentObserver
from serving.http.completions import CompletionEndpoint
from serving.http.contracts import ContractDesk
from serving.http.embeddings import EmbeddingEndpoint
from serving.http.endpoint import Parts
from serving.http.errors import ApiError, json_response
from serving.http.metrics import Gauge, Metrics, may_scrape
from serving.http.prompts import PromptReader
from serving.http.request_ids import RequestIds
from serving.http.sizes import AnswerSizes
from serving.tokenization.tokenizer import Tokenizer


def create_app(
    engine: Engine,
    tokenizer: Tokenizer,
    *,
    authorizer: RequestAuthorizer,
    contracts: ContractSource,
    observer: CompletionObserver | None = None,
    grammars: GrammarCompiler | None = None,
    extra_routes: Sequence[BaseRoute] = (),
    lifespans: Sequence[contextlib.AbstractAsyncContextManager[object]] = (),
    max_body_bytes: int = 1 << 20,
    shutdown_grace_s: float = 0.0,
    gauges: Sequence[Gauge] = (),
) -> Starlette:
    """Make the replica's ASGI application, which starts the engine and stops it at shutdown.

    contracts: knows the contracts of adapters, which requests are read by
    grammars: the compiler of `grammar_compiler`, where others use it too; it is closed with the application
    lifespans: entered after the engine has started, left before it stops
    gauges: further values that /metrics shows
    """
    metrics = Metrics(engine, gauges)
    grammars = grammars or grammar_compiler(engine, tokenizer)
    parts = Parts(
        engine,
        tokenizer,
        PromptReader(tokenizer, engine.vocab_size),
        ContractDesk(contracts, tokenizer),
        grammars,
        authorizer,
        observer or SilentObserver(),
        metrics,
        max_body_bytes,
        AnswerSizes(tokenizer, engine.vocab_size),
        spans := spans_of("intarsia-replica"),
    )

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        engine.start()
        try:
            async with contextlib.AsyncExitStack() as stack:
                for part in lifespans:
                    await stack.enter_async_context(part)
                yield
        finally:
            await asyncio.to_thread(engine.stop, shutdown_grace_s)
            if spans is not None:
                await asyncio.to_thread(spans.close)
            grammars.close()

    async def health(_: Request) -> Response:
        return json_response(
            {"status": "ok"} if engine.alive else {"status": "engine stopped"}, 200 if engine.alive else 500
        )

    async def ready(_: Request) -> Response:
        if engine.accepting:
            return json_response({"status": "ready"})
        return json_response({"status": "not ready"}, 503, {"Retry-After": "1"})

    async def show_metrics(request: Request) -> Response:
        peer = request.client.host if request.client else None
        if not may_scrape(peer, request.headers.get("authorization", "")):
            raise HTTPException(404)
        return Response(metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(_: Request) -> Response:
        return json_response({"object": "list", "data": [_card(name) for name in await authorizer.model_names()]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in await authorizer.model_names():
            raise ApiError(404, f"The model '{name}' does not exist.", code="model_not_found", param="model")
        return json_response(_card(name))

    return Starlette(
        lifespan=lifespan,
        middleware=[Middleware(RequestIds)],
        exception_handlers={ApiError: _api_error, HTTPException: _http_error, Exception: _unexpected},
        routes=[
            Route("/v1/completions", CompletionEndpoint(CompletionBody, parts), methods=["POST"]),
            Route("/v1/chat/completions", CompletionEndpoint(ChatBody, parts), methods=["POST"]),
            Route("/v1/embeddings", EmbeddingEndpoint(EmbeddingBody, parts), methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/healthz", health),
            Route("/readyz", ready),
            Route("/metrics", show_metrics),
            *extra_routes,
        ],
    )


def grammar_compiler(engine: Engine, tokenizer: Tokenizer) -> GrammarCompiler:
    """Return a compiler for this model's vocabulary."""
    return GrammarCompiler(tokenizer.backend.to_str, engine.vocab_size, tokenizer.eos_token_ids)


def _card(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "intarsia"}


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {404: f"No such path: {request.url.path}", 405: f"{request.method} is not allowed here"}
    return ApiError(
        error.status_code, text.get(error.status_code, error.detail), headers=dict(error.headers or {})
    ).response()


async def _unexpected(_: Request, error: Exception) -> Response:
    return ApiError(500, "The replica failed to answer this request.", code="internal_error").response()
