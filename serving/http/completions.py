"""One completion from socket to socket: read, parse, authorize, submit, answer; cancel when the client goes away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Generic

from starlette.types import Receive, Scope, Send

from serving.core import AdapterRevoked, Delta, EngineError, EngineStopped, Request, Usage
from serving.engine import Engine
from serving.handle import RequestHandle
from serving.http import schema
from serving.http.admission import Admission, CompletionObserver, IncomingRequest, RequestAuthorizer
from serving.http.errors import ApiError, from_engine, json_response
from serving.http.format import ChatFormat, CompletionFormat, Format
from serving.http.metrics import Metrics
from serving.http.wire import EventStream, headers_of, read_body, wait_for_disconnect
from serving.tokenization.chat_template import ChatTemplateError
from serving.tokenization.tokenizer import Tokenizer

# Longer texts are tokenized off the event loop, where they would hold up everyone's tokens.
_INLINE_CHARS = 8_192


class Completion:
    """An admitted request. Whatever happens to it, the observer hears of its end exactly once."""

    def __init__(
        self, engine: Engine, handle: RequestHandle, prompt_tokens: int, observer: CompletionObserver, metrics: Metrics
    ) -> None:
        self.request_id = handle.request_id
        self._engine, self._handle, self._observer, self._metrics = engine, handle, observer, metrics
        self.usage = Usage(prompt_tokens, 0, 0)
        self._began = self._last = time.perf_counter()
        self._closing: asyncio.Task[dict[str, Any] | None] | None = None

    async def deltas(self) -> AsyncIterator[Delta]:
        """Raises EngineError when the completion fails."""
        first = True
        async for delta in self._handle:
            now = time.perf_counter()
            (self._metrics.ttft if first else self._metrics.itl).observe(now - (self._began if first else self._last))
            first, self._last, self.usage = False, now, delta.usage
            self._observer.on_progress(self.request_id, delta.usage)
            yield delta

    async def close(self, finish_reason: str) -> dict[str, Any] | None:
        """Tells the observer, once; a client that leaves meanwhile does not interrupt it."""
        if self._closing is None:
            self._metrics.finished.labels(finish_reason).inc()
            self._metrics.duration.observe(time.perf_counter() - self._began)
            self._closing = asyncio.create_task(self._finish(finish_reason))
        return await asyncio.shield(self._closing)

    async def abandon(self) -> None:
        """The client has gone: stop computing and settle what was used."""
        self._engine.cancel(self.request_id)
        await self.close("cancelled")

    async def _finish(self, reason: str) -> dict[str, Any] | None:
        return await self._observer.on_finish(self.request_id, self.usage, reason)


class CompletionEndpoint(Generic[schema.Body]):
    """ASGI application of one endpoint; `kind` says which."""

    def __init__(
        self,
        kind: type[schema.Body],
        engine: Engine,
        tokenizer: Tokenizer,
        authorizer: RequestAuthorizer,
        observer: CompletionObserver,
        metrics: Metrics,
        max_body_bytes: int,
    ) -> None:
        self._kind: type[schema.Body] = kind
        self._engine, self._tokenizer = engine, tokenizer
        self._authorizer, self._observer, self._metrics = authorizer, observer, metrics
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = headers_of(scope)
            raw = await read_body(receive, self._max_body_bytes)
            body = schema.parse(raw, self._kind)
            admission = await self._authorizer.authorize(IncomingRequest(scope["path"], headers, raw, body))
            completion = self._submit(body, admission, await self._prompt(body))
        except EngineError as error:
            await from_engine(error).response()(scope, receive, send)
            return
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        kind = CompletionFormat if isinstance(body, schema.CompletionBody) else ChatFormat
        form = kind(
            completion.request_id,
            body.model,
            self._tokenizer.token_text,
            include_usage=body.include_usage,
            token_ids=body.return_token_ids,
        )
        answer = self._stream if body.stream else self._whole
        work = asyncio.create_task(answer(completion, form, body, scope, receive, send))
        gone = asyncio.create_task(wait_for_disconnect(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            finished = work.done()
            work.cancel()
            if not finished:
                await completion.abandon()
        if finished:
            work.result()

    def _submit(self, body: schema.AnyBody, admission: Admission, prompt: list[int]) -> Completion:
        granted = admission.max_prompt_tokens
        if granted is not None and len(prompt) > granted:
            raise ApiError(
                400,
                f"The prompt is {len(prompt)} tokens long, {granted} were authorized.",
                code="prompt_exceeds_authorization",
            )
        room = max(1, self._engine.max_model_len - len(prompt))
        limit = schema.max_tokens(body, 16 if isinstance(body, schema.CompletionBody) else room)
        if admission.max_tokens is not None:
            limit = min(limit, admission.max_tokens)
        request = Request(
            admission.request_id,
            admission.tenant,
            admission.cache_scope,
            admission.adapter,
            tuple(prompt),
            schema.sampling_params(body),
            limit,
            admission.deadline,
        )
        return Completion(self._engine, self._engine.submit(request), len(prompt), self._observer, self._metrics)

    async def _prompt(self, body: schema.AnyBody) -> list[int]:
        """Token ids of the prompt. Raises ApiError 400."""
        if isinstance(body, schema.ChatBody):
            text, special = self._render(schema.chat_messages(body)), False
        else:
            prompt = schema.prompt_parts(body)
            if isinstance(prompt, list):
                if not all(0 <= token < self._engine.vocab_size for token in prompt):
                    raise ApiError(
                        400,
                        f"'prompt' token ids must be from 0 to {self._engine.vocab_size - 1}.",
                        code="invalid_value",
                        param="prompt",
                    )
                return prompt
            text, special = prompt, True
        if len(text) <= _INLINE_CHARS:
            ids = self._tokenizer.encode(text, add_special_tokens=special)
        else:
            ids = await asyncio.to_thread(self._tokenizer.encode, text, add_special_tokens=special)
        if not ids:
            raise ApiError(400, "'prompt' must not be empty.", code="invalid_value", param="prompt")
        return ids

    def _render(self, messages: list[dict[str, str]]) -> str:
        if self._tokenizer.chat_template is None:
            raise ApiError(400, "This model has no chat template; use /v1/completions.", code="no_chat_template")
        try:
            return self._tokenizer.chat_template.render(messages)
        except ChatTemplateError as error:
            raise ApiError(
                400, f"The chat template refused the messages: {error}", code="invalid_value", param="messages"
            ) from None

    async def _whole(
        self, completion: Completion, form: Format, body: schema.AnyBody, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            deltas = [delta async for delta in completion.deltas()]
        except EngineError as error:
            await self._refuse(completion, error, scope, receive, send)
            return
        extra = await completion.close(deltas[-1].finish_reason or "stop")
        answer = form.whole(deltas) | ({} if extra is None else {"intarsia": extra})
        await json_response(answer, headers=_prediction(completion))(scope, receive, send)

    async def _stream(
        self, completion: Completion, form: Format, body: schema.AnyBody, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Errors before the first token still get their HTTP status; later ones are an event of the stream."""
        events, started, reason = EventStream(send), False, "stop"
        try:
            async for delta in completion.deltas():
                if not started:
                    started = True
                    await events.start([(b"x-intarsia-prediction", completion.request_id.encode())])
                    if (opening := form.opening()) is not None:
                        await events.event(opening)
                if delta.text or delta.finish_reason or body.return_token_ids or delta.logprobs:
                    await events.event(form.chunk(delta))
                reason = delta.finish_reason or reason
        except EngineError as error:
            if not started:
                await self._refuse(completion, error, scope, receive, send)
                return
            extra = await completion.close(_finish_reason(error))
            await events.event(from_engine(error).envelope | ({} if extra is None else {"intarsia": extra}))
        else:
            extra = await completion.close(reason)
            if body.include_usage or extra is not None:
                closing = form.closing(completion.usage)
                await events.event(closing | ({} if extra is None else {"intarsia": extra}))
        await events.done()

    async def _refuse(
        self, completion: Completion, error: EngineError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        extra = await completion.close(_finish_reason(error))
        answer = from_engine(error)
        envelope = answer.envelope | ({} if extra is None else {"intarsia": extra})
        await json_response(envelope, answer.status, answer.headers | _prediction(completion))(scope, receive, send)


def _prediction(completion: Completion) -> dict[str, str]:
    return {"X-Intarsia-Prediction": completion.request_id}


def _finish_reason(error: EngineError) -> str:
    if isinstance(error, AdapterRevoked):
        return "revoked"
    return "interrupted" if isinstance(error, EngineStopped) else "error"
