"""The engine's work for one HTTP request: one completion, or several, of one prompt or several."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from protocol.contracts import canonical_answer, delivers
from serving.core import Delta, Request, Usage
from serving.engine import Engine
from serving.errors import AdapterRevoked, EngineError, EngineStopped, QueueFull
from serving.handle import MAX_BACKLOG, RequestHandle, Times
from serving.http.admission import Admission, CompletionObserver, Ending
from serving.http.call_judge import CallJudge
from serving.http.metrics import Metrics

log = structlog.stdlib.get_logger("serving.request")

# Choices of one request in the engine at once, so that a request with many does not crowd out others.
_WINDOW = 32
# Further completions of a prompt this long wait for the first one's first token: its KV is then in the prefix cache.
_SHARED_PREFIX = 64
_RETRY_SECONDS = 0.05


class Work:
    """An admitted request. Its observer is told of its end exactly once, however it ends.

    requests: one for each choice, those of one prompt side by side, `each` of them a prompt; their ids begin with the
    admission's
    returned_tokens: completion tokens of the choices that are returned, where more were computed: set before `close`
    whole: the schema of its creator's contract, where an answer that is cut at its limit counts no tokens unless it
        delivers (`protocol.contracts.delivers`); it has one choice then
    answers: the places of its contract's answers, where they are a closed set
    calls: the judge of its calls of functions, where it may make any
    """

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[Request],
        each: int,
        admission: Admission,
        observer: CompletionObserver,
        metrics: Metrics,
        http_id: str,
        *,
        whole: Mapping[str, Any] | None = None,
        answers: Mapping[str, int] | None = None,
        calls: CallJudge | None = None,
    ) -> None:
        self.request_id = admission.request_id
        self.overflow = asyncio.Event()
        self._admission, self._http_id = admission, http_id
        self._engine, self._observer, self._metrics = engine, observer, metrics
        self._requests, self._each, self._whole = requests, each, whole
        self.returned_tokens: int | None = None
        # With several choices no single answer could be named.
        self._answers, self._calls = (answers, calls) if len(requests) == 1 else (None, None)
        self._texts: list[str] = []
        self._usages = [Usage(len(r.prompt_token_ids) if i % each == 0 else 0, 0, 0) for i, r in enumerate(requests)]
        self._reasons: list[str | None] = [None] * len(requests)
        self._began = time.perf_counter()
        self._last = [self._began] * len(requests)
        self._ttft: float | None = None
        self._pumps: list[asyncio.Task[None]] = []
        self._closing: asyncio.Task[dict[str, Any] | None] | None = None
        self._first = self._submit(0)  # a refusal is raised here, before anything was promised
        if len(requests) > 1:
            self._merged: asyncio.Queue[tuple[int, Delta | EngineError]] = asyncio.Queue()
            self._window = asyncio.Semaphore(_WINDOW)
            self._shared = [asyncio.Event() for _ in range(len(requests) // each)]
            self._pumps = [asyncio.create_task(self._pump(index)) for index in range(len(requests))]

    @property
    def usage(self) -> Usage:
        """Return usage over all choices. A prompt counts once, independent of its number of completions."""
        if len(self._usages) == 1:
            one = self._usages[0]
            return one if self.returned_tokens is None else replace(one, returned_tokens=self.returned_tokens)
        return Usage(
            sum(usage.prompt_tokens for usage in self._usages[:: self._each]),
            sum(usage.completion_tokens for usage in self._usages),
            sum(usage.cached_tokens for usage in self._usages[:: self._each]),
            sum(usage.drafted_tokens for usage in self._usages),
            sum(usage.accepted_tokens for usage in self._usages),
            self.returned_tokens,
        )

    @property
    def times(self) -> Times | None:
        """Return the way of the first completion through the engine, once it has ended."""
        return self._first.times

    @property
    def adapter(self) -> str | None:
        """Return the digest of the adapter, None for the bare base."""
        return self._admission.adapter.digest

    @property
    def prompt_alone(self) -> bool:
        """Return whether the prompt is computed for another replica, and nothing is generated."""
        return self._admission.prompt_alone

    @property
    def counted(self) -> Usage:
        """Return the usage that the receipt counts."""
        cut = self._whole is not None and self.finish_reason == "length"
        free = cut and not delivers(self._whole or {}, "".join(self._texts))
        return replace(self.usage, completion_tokens=0) if free else self.usage

    @property
    def finish_reason(self) -> str:
        """Return the finish reason of the whole request: the worst of its choices' reasons."""
        return next((r for r in ("cancelled", "budget", "length") if r in self._reasons), "stop")

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """Yield each delta with its choice. Raises EngineError when a choice fails; the others are then cancelled."""
        if not self._pumps:
            async for delta in self._first:
                self._record(0, delta)
                yield 0, delta
            return
        left = len(self._requests)
        while left:
            index, item = await self._merged.get()
            if isinstance(item, EngineError):
                self._stop()
                raise item
            self._record(index, item)
            yield index, item
            if item.finish_reason == "cancelled":
                break
            if item.finish_reason is not None:
                left -= 1
        if "cancelled" in self._reasons:  # one choice was cancelled, so all are, also choices not submitted yet
            self._stop()
            for index, reason in enumerate(self._reasons):
                if reason is None:
                    end = Delta("", (), (), "cancelled", self._usages[index])
                    self._record(index, end)
                    yield index, end

    async def close(self, finish_reason: str) -> dict[str, Any] | None:
        """Tell the observer of the end, once; a client that disconnects meanwhile does not interrupt it."""
        if self._closing is None:
            seconds = time.perf_counter() - self._began
            self._metrics.finished.labels(finish_reason).inc()
            self._metrics.duration.observe(seconds)
            self._log(finish_reason, seconds)
            self._closing = asyncio.create_task(self._finish(finish_reason))
        return await asyncio.shield(self._closing)

    async def fail(self, error: EngineError) -> dict[str, Any] | None:
        """Close with the finish reason of this error."""
        if isinstance(error, AdapterRevoked):
            return await self.close("revoked")
        return await self.close("interrupted" if isinstance(error, EngineStopped) else "error")

    async def abandon(self) -> None:
        """Stop computing and settle the usage: the client has disconnected or does not read."""
        self._stop()
        await self.close("cancelled")

    # ---------------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        for request, reason in zip(self._requests, self._reasons, strict=True):
            if reason is None:
                self._engine.cancel(request.request_id)

    def _submit(self, index: int) -> RequestHandle:
        handle = self._engine.submit(self._requests[index], continues=index > 0)
        handle.on_overflow = self.overflow.set
        return handle

    async def _pump(self, index: int) -> None:
        """Submit one choice when it is its turn, and merge its deltas with the others'."""
        first = index - index % self._each
        shared = self._shared[index // self._each]
        try:
            if index > first and len(self._requests[index].prompt_token_ids) >= _SHARED_PREFIX:
                await shared.wait()
            async with self._window:
                handle = self._first if index == 0 else await self._submit_later(index)
                async for delta in handle:
                    shared.set()
                    if self._merged.qsize() >= MAX_BACKLOG:
                        self.overflow.set()
                        return
                    self._merged.put_nowait((index, delta))
        except EngineError as error:
            self._merged.put_nowait((index, error))
        finally:
            shared.set()

    async def _submit_later(self, index: int) -> RequestHandle:
        """Submit a further choice. The request was admitted as a whole, so wait for a full queue until its deadline."""
        deadline = self._admission.deadline
        while True:
            try:
                return self._submit(index)
            except QueueFull:
                if deadline is not None and time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)

    def _record(self, index: int, delta: Delta) -> None:
        now = time.perf_counter()
        if self._usages[index].completion_tokens:
            self._metrics.itl.observe(now - self._last[index])
        elif self._ttft is None:
            self._ttft = now - self._began
            self._metrics.ttft.observe(self._ttft)
        self._last[index] = now
        self._reasons[index] = delta.finish_reason
        self._usages[index] = delta.usage
        if self._answers or self._calls or self._whole is not None:
            self._texts.append(delta.text)
        self._observer.on_progress(self.request_id, self.usage)

    def checkpoint(self, shown: int) -> str | None:
        """Return a receipt of the completion tokens that a stream has shown; None: not now."""
        return self._observer.checkpoint(self.request_id, self.usage, shown)

    def _log(self, finish_reason: str, seconds: float) -> None:
        """Log counts and times, never a prompt or an output."""
        usage, adapter = self.usage, self._admission.adapter
        log.info(
            "request",
            request_id=self.request_id,
            http_request_id=self._http_id,
            model=adapter.digest or "base",
            latency_class=self._requests[0].latency_class.name.lower(),
            choices=len(self._requests),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            accepted_tokens=usage.accepted_tokens,
            finish_reason=finish_reason,
            ttft_ms=None if self._ttft is None else round(self._ttft * 1000, 1),
            duration_ms=round(seconds * 1000, 1),
        )

    async def _finish(self, reason: str) -> dict[str, Any] | None:
        for pump in self._pumps:
            with contextlib.suppress(asyncio.CancelledError):
                await pump
        fit = None if self._calls is None else await self._calls.fit("".join(self._texts))
        ending = Ending(self._answer(reason), self._queue_seconds(), fit)
        return await self._observer.on_finish(self.request_id, self.counted, reason, ending)

    def _queue_seconds(self) -> float | None:
        times = self._first.times
        return None if times is None or times.admitted_at is None else max(0.0, times.admitted_at - times.arrival)

    def _answer(self, reason: str) -> int | None:
        """Return the place of the answer in its closed set; None without a set, or where it did not end by itself."""
        if not self._answers or reason != "stop":
            return None
        try:
            return self._answers.get(canonical_answer(json.loads("".join(self._texts))))
        except ValueError:
            return None
