"""From socket to socket: read, parse, authorize, submit, answer; cancel when the client goes away or stops reading."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

import structlog
from starlette.types import Receive, Scope, Send

from protocol.messages import PREDICTION_EXTRA_KEY, PREDICTION_HEADER
from serving.constraints import GrammarCompiler
from serving.core import Request
from serving.engine import Engine
from serving.errors import EngineError
from serving.http import schema
from serving.http.admission import Admission, CompletionObserver, IncomingRequest, RequestAuthorizer
from serving.http.errors import ApiError, from_engine, json_response
from serving.http.metrics import Metrics
from serving.http.prompts import Prompt, PromptReader
from serving.http.wire import abort, headers_of, read_body, wait_for_disconnect
from serving.http.work import Work
from serving.tokenization.tokenizer import Tokenizer

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects that every endpoint uses."""

    engine: Engine
    tokenizer: Tokenizer
    prompts: PromptReader
    grammars: GrammarCompiler
    authorizer: RequestAuthorizer
    observer: CompletionObserver
    metrics: Metrics
    max_body_bytes: int


class Endpoint(ABC, Generic[schema.Body]):
    """ASGI application of one path; `kind` is the type of its request bodies."""

    def __init__(self, kind: type[schema.Body], parts: Parts) -> None:
        self._kind: type[schema.Body] = kind
        self.parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = self.parts
        try:
            raw = await read_body(scope, receive, parts.max_body_bytes)
            body = schema.parse(raw, self._kind)
            incoming = IncomingRequest(scope["path"], headers_of(scope), raw, body)
            admission = await parts.authorizer.authorize(incoming)
            work, form = await self.begin(body, admission, scope.get("intarsia.request_id", ""))
        except EngineError as error:
            await from_engine(error, self._kind.prompt_field).response()(scope, receive, send)
            return
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        answering = asyncio.create_task(self.answer(work, form, body, scope, receive, send))
        gone = asyncio.create_task(wait_for_disconnect(receive))
        slow = asyncio.create_task(work.overflow.wait())
        try:
            await asyncio.wait({answering, gone, slow}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            finished = answering.done()
            for task in (answering, gone, slow):
                task.cancel()
            if not finished:
                if work.overflow.is_set():
                    log.warning("client does not read", request_id=work.request_id)
                    abort(scope)
                await work.abandon()
        if finished:
            answering.result()

    @abstractmethod
    async def begin(self, body: schema.Body, admission: Admission, http_id: str) -> tuple[Work, Any]:
        """Submit the requests that the body asks for. Raises ApiError or EngineError."""

    @abstractmethod
    async def answer(
        self, work: Work, form: Any, body: schema.Body, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Write the whole answer."""

    def work(
        self, requests: Sequence[Request], each: int, prompts: Sequence[Prompt], admission: Admission, http_id: str
    ) -> Work:
        """Submit requests. Raises ApiError or EngineError before anything is held."""
        for request in requests:  # first, since the platform authorizes no more than the context length
            self.parts.engine.check_length(request)
        size, granted = sum(len(prompt.token_ids) for prompt in prompts), admission.max_prompt_tokens
        if granted is not None and size > granted:
            raise ApiError(
                400,
                f"The prompt is {size} tokens long, {granted} were authorized.",
                code="prompt_exceeds_authorization",
            )
        parts = self.parts
        return Work(parts.engine, requests, each, admission, parts.observer, parts.metrics, http_id)


async def refuse(work: Work, error: EngineError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an error as the whole answer; nothing may have been sent yet."""
    extra = await work.fail(error)
    answer = from_engine(error)
    envelope = answer.envelope | ({} if extra is None else {PREDICTION_EXTRA_KEY: extra})
    await json_response(envelope, answer.status, answer.headers | prediction(work))(scope, receive, send)


def prediction(work: Work) -> dict[str, str]:
    """Return the header that names this piece of work."""
    return {PREDICTION_HEADER: work.request_id}
