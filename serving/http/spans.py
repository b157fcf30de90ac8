"""The spans of one request in a replica: the queue, the load of its adapter, prefill and decoding.

They are made when the request has ended, from the times that the engine kept (`serving.handle.Times`), so that no step
does anything for them. `--trace` (`serving.trace`) records the steps themselves.
"""

from __future__ import annotations

import time

from starlette.types import Scope

from protocol.tracing import TRACEPARENT, Span, Spans
from serving.engine import Engine
from serving.handle import Times
from serving.http.wire import headers_of
from serving.http.work import Work


class RequestTrace:
    """One request from its arrival to its end; the gateway's `traceparent` is the parent. `work`: once admitted."""

    def __init__(self, spans: Spans, engine: Engine, scope: Scope) -> None:
        """Begin the request's span."""
        self.work: Work | None = None
        self._spans, self._engine = spans, engine
        self._span = spans.begin("replica", parent=headers_of(scope).get(TRACEPARENT), kind="server")
        self._span.set(gen_ai__provider__name="intarsia")

    def end(self) -> None:
        """End the request, with a span for each stage that it came to."""
        work = self.work
        if work is None:
            self._span.end(error="refused")
            return
        usage, times = work.usage, work.times
        self._span.set(
            gen_ai__usage__input_tokens=usage.prompt_tokens,
            gen_ai__usage__output_tokens=usage.completion_tokens,
            gen_ai__response__finish_reasons=[work.finish_reason],
            intarsia__prediction_id=work.request_id,
            intarsia__cached_tokens=usage.cached_tokens,
        )
        if times is not None:
            self._stages(times, work.adapter)
        self._span.end()

    def _stages(self, times: Times, adapter: str | None) -> None:
        now, ended = time.time_ns(), time.monotonic()
        self._span.set(intarsia__steps=times.steps)

        def stage(name: str, began: float, until: float) -> Span:
            span = self._spans.begin(name, parent=self._span, at_ns=now - int((ended - began) * 1e9))
            span.end(now - int((ended - until) * 1e9))
            return span

        load = None if adapter is None else self._engine.adapters.loaded(adapter)
        if load is not None and load[1] > times.arrival:  # it was not ready when the request came
            stage("load adapter", max(load[0], times.arrival), load[1])
        admitted, first = times.admitted_at, times.first_token_at
        stage("queue", times.arrival, ended if admitted is None else admitted)
        if admitted is not None:
            stage("prefill", admitted, ended if first is None else first)
        if first is not None:
            stage("decode", first, ended)
