"""From socket to socket: read, parse, authorize, submit, answer; cancel when the client goes away or stops reading."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import structlog
from starlette.types import Receive, Scope, Send

from protocol.errors import RequestRefused
from protocol.messages import PREDICTION_EXTRA_KEY, PREDICTION_HEADER
from protocol.requests.bodies import Body
from protocol.requests.parsing import parse
from protocol.tracing import Spans
from serving.constraints import GrammarCompiler
from serving.core import Request, Usage
from serving.engine import Engine
from serving.errors import EngineError
from serving.http import keep_alive
from serving.http.admission import Admission, CompletionObserver, IncomingRequest, RequestAuthorizer
from serving.http.call_judge import CallJudge
from serving.http.contracts import ContractDesk
from serving.http.errors import ApiError, from_engine, from_request, json_response
from serving.http.metrics import Metrics
from serving.http.prompts import Prompt, PromptReader
from serving.http.sizes import AnswerSizes
from serving.http.spans import RequestTrace
from serving.http.wire import Interrupted, abort, headers_of, read_body, unless, wait_for_disconnect
from serving.http.work import Work
from serving.tokenization.tokenizer import Tokenizer

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects that every endpoint uses."""

    engine: Engine
    tokenizer: Tokenizer
    prompts: PromptReader
    contracts: ContractDesk
    grammars: GrammarCompiler
    authorizer: RequestAuthorizer
    observer: CompletionObserver
    metrics: Metrics
    max_body_bytes: int
    sizes: AnswerSizes
    spans: Spans | None = None  # None: nothing is traced


class Endpoint(ABC, Generic[Body]):
    """ASGI application of one path; `kind` is the type of its request bodies."""

    def __init__(self, kind: type[Body], parts: Parts) -> None:
        self._kind: type[Body] = kind
        self.parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            raw = await read_body(scope, receive, self.parts.max_body_bytes)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        trace = None if self.parts.spans is None else RequestTrace(self.parts.spans, self.parts.engine, scope)
        # From here to the end of the answer, the client is watched.
        gone = asyncio.create_task(wait_for_disconnect(receive))
        alive = keep_alive.KeptAlive(send, seconds=keep_alive.ALIVE_SECONDS)
        send = alive.send
        try:
            body, work, form = await self._admit(raw, gone, scope, alive)
        except EngineError as error:
            await from_engine(error, self._kind.prompt_field).response()(scope, receive, send)
        except RequestRefused as error:
            await from_request(error).response()(scope, receive, send)
        except ApiError as error:
            await error.response()(scope, receive, send)
        except Interrupted:
            log.info("client hung up before its work began")
        else:
            if trace is not None:
                trace.work = work
            await self._watch(work, gone, self.answer(work, form, body, scope, receive, send), scope)
        finally:
            gone.cancel()
            alive.close()
            if trace is not None:
                trace.end()

    async def _admit(
        self, raw: bytes, gone: asyncio.Task[None], scope: Scope, alive: keep_alive.KeptAlive
    ) -> tuple[Body, Work, Any]:
        """Parse, authorize and submit, unless the client hangs up. An admitted request ends with its observer told.

        Raises ApiError, EngineError, and Interrupted when the client hung up.
        """
        parts = self.parts
        body = parse(raw, self._kind)
        incoming = IncomingRequest(scope["path"], headers_of(scope), raw, body)
        admission = await unless([gone], parts.authorizer.authorize(incoming))
        streams = bool(getattr(body, "stream", False))
        if admission.signs_of_life or streams:  # a client of a stream ignores comments, whoever it is
            alive.begin(admission.request_id, stream=streams)
        stopped = asyncio.create_task(admission.stopped.wait())
        reason = "error"
        try:
            beginning = self.begin(body, admission, scope.get("intarsia.request_id", ""))
            work, form = await unless([gone, stopped], beginning)
        except Exception as error:
            if isinstance(error, Interrupted):
                reason = "cancelled"
            await parts.observer.on_finish(admission.request_id, Usage(0, 0, 0), reason)
            if reason == "cancelled" and not gone.done():
                raise ApiError(409, "The request was cancelled.", code="cancelled") from None
            raise
        finally:
            stopped.cancel()
        if admission.stopped.is_set():  # just before the engine knew of it
            parts.engine.cancel(admission.request_id)
        return body, work, form

    async def _watch(
        self, work: Work, gone: asyncio.Task[None], answer: Coroutine[Any, Any, None], scope: Scope
    ) -> None:
        """Answer, unless the client hangs up or stops reading: the work is then abandoned."""
        answering = asyncio.create_task(answer)
        slow = asyncio.create_task(work.overflow.wait())
        try:
            await asyncio.wait({answering, gone, slow}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            finished = answering.done()
            for task in (answering, slow):
                task.cancel()
            if not finished:
                if work.overflow.is_set():
                    log.warning("client does not read", request_id=work.request_id)
                    abort(scope)
                await work.abandon()
        if finished:
            answering.result()

    @abstractmethod
    async def begin(self, body: Body, admission: Admission, http_id: str) -> tuple[Work, Any]:
        """Submit the requests that the body asks for. Raises ApiError or EngineError."""

    @abstractmethod
    async def answer(self, work: Work, form: Any, body: Body, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the whole answer."""

    def check_lengths(self, requests: Sequence[Request], prompts: Sequence[Prompt], admission: Admission) -> None:
        """Raise PromptTooLong, or ApiError for prompts longer than was granted."""
        for request in requests:  # first, since the platform authorizes no more than the context length
            self.parts.engine.check_length(request)
        size, granted = sum(len(prompt.token_ids) for prompt in prompts), admission.max_prompt_tokens
        if granted is not None and size > granted:
            raise ApiError(
                400,
                f"The prompt is {size} tokens long, {granted} were authorized.",
                code="prompt_exceeds_authorization",
            )

    def work(
        self,
        requests: Sequence[Request],
        each: int,
        admission: Admission,
        http_id: str,
        *,
        whole: Mapping[str, Any] | None = None,
        answers: Mapping[str, int] | None = None,
        calls: CallJudge | None = None,
    ) -> Work:
        """Submit requests. Raises EngineError before anything is held."""
        parts = self.parts
        return Work(
            parts.engine,
            requests,
            each,
            admission,
            parts.observer,
            parts.metrics,
            http_id,
            whole=whole,
            answers=answers,
            calls=calls,
        )


async def refuse(work: Work, error: EngineError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an error as the whole answer; nothing may have been sent yet."""
    extra = await work.fail(error)
    answer = from_engine(error)
    envelope = answer.envelope | ({} if extra is None else {PREDICTION_EXTRA_KEY: extra})
    await json_response(envelope, answer.status, answer.headers | prediction(work))(scope, receive, send)


def prediction(work: Work) -> dict[str, str]:
    """Return the header that names this piece of work."""
    return {PREDICTION_HEADER: work.request_id}
