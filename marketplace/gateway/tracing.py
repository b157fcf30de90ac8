"""The spans of one prediction in the gateway: its phases, one for each attempt at a replica, and the charge.

Without an endpoint to export to there is no `Trace`, and each place that could add to one asks for that alone.
"""

from __future__ import annotations

import time

from marketplace.gateway.http import Scope, headers_of
from marketplace.gateway.order import Order
from protocol.receipts import Receipt
from protocol.tracing import TRACEPARENT, Span, Spans

_TRACE = "intarsia.trace"  # in the scope of a traced request
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/responses": "chat",
}


class Trace:
    """One request from its arrival to its end. The caller's `traceparent` is the parent."""

    def __init__(self, spans: Spans, scope: Scope) -> None:
        """Begin the request's span, and its first phase."""
        self._spans = spans
        self._operation = _OPERATIONS[scope["path"]]
        parent = headers_of(scope).get(TRACEPARENT.encode(), b"").decode("latin-1")
        self._since = time.time_ns()
        self._root = spans.begin(self._operation, parent=parent or None, kind="server", at_ns=self._since)
        self._root.set(gen_ai__operation__name=self._operation, gen_ai__provider__name="intarsia")
        self._attempt: Span | None = None
        scope[_TRACE] = self

    def phase(self, name: str) -> None:
        """End a phase, and begin the next. An attempt that is open ends as the phase."""
        now = time.time_ns()
        if self._attempt is not None:
            self._attempt.end(now)
            self._attempt = None
        else:
            self._spans.begin(name, parent=self._root, at_ns=self._since).end(now)
        self._since = now

    def asked(self, order: Order) -> None:
        """Say what was asked for."""
        request = order.request
        self._root.inner.update_name(f"{self._operation} {request.model.listing}")
        self._root.set(
            gen_ai__request__model=str(request.model),
            gen_ai__request__max_tokens=order.max_tokens,
            gen_ai__request__stream=request.stream,
            intarsia__prediction_id=str(order.id),
            intarsia__latency_class=request.latency_class,
        )

    def attempt(self, number: int, replica: str) -> str:
        """Begin an attempt at a replica, after ending one that failed; return the header for its request."""
        if self._attempt is not None:
            self._attempt.end(error="not_taken")
        self._attempt = span = self._spans.begin("dispatch", parent=self._root, kind="client")
        span.set(intarsia__attempt=number, intarsia__replica=replica)
        return span.traceparent

    def charged(self, receipt: Receipt, *, began_ns: int) -> None:
        """Note the charge, and what it was for."""
        self._spans.begin("settle", parent=self._root, at_ns=began_ns).end()
        self._root.set(
            gen_ai__usage__input_tokens=receipt.prompt_tokens,
            gen_ai__usage__output_tokens=receipt.completion_tokens,
            gen_ai__response__finish_reasons=[receipt.finish_reason],
            intarsia__cached_tokens=receipt.cached_tokens,
        )

    def end(self, *, error: str = "") -> None:
        """End the request; `error` is the code of a refusal."""
        if self._attempt is not None:
            self._attempt.end(error=error or "abandoned")
        self._root.end(error=error)


def trace_of(scope: Scope) -> Trace | None:
    """Return the trace of a request, or None."""
    trace: Trace | None = scope.get(_TRACE)
    return trace


def begin_trace(spans: Spans | None, scope: Scope) -> Trace | None:
    """Begin the trace of a prediction; None where nothing is exported, and for other paths."""
    return Trace(spans, scope) if spans is not None and scope["path"] in _OPERATIONS else None
