"""Traces that cross processes: W3C `traceparent` headers, and spans that OpenTelemetry exports.

Off unless `OTEL_EXPORTER_OTLP_ENDPOINT` (or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`) is set: then nothing of OpenTelemetry
is imported, and no request pays for anything. Names of spans and attributes are in docs/tracing.md; none of them has a
prompt, an answer or a key.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

log = logging.getLogger(__name__)

TRACEPARENT = "traceparent"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
MAX_TRACEPARENT = 100  # characters; one of today's version has 55

Kind = Literal["server", "client", "internal", "consumer"]
Value = str | int | float | bool | Sequence[str]


@dataclass(frozen=True, slots=True)
class Span:
    """A span that was begun; `end` it once."""

    inner: Any

    def set(self, **attributes: Value) -> None:
        """Add attributes; `gen_ai__request__model` names `gen_ai.request.model`."""
        self.inner.set_attributes({name.replace("__", "."): value for name, value in attributes.items()})

    def end(self, at_ns: int | None = None, *, error: str = "") -> None:
        """End the span, now or at `at_ns`; `error` is a code, never a message."""
        if error:
            from opentelemetry.trace import StatusCode

            self.inner.set_attribute("error.type", error)
            self.inner.set_status(StatusCode.ERROR)
        self.inner.end(at_ns)

    @property
    def traceparent(self) -> str:
        """Return the header that makes another process's spans children of this one."""
        context = self.inner.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"


class Spans:
    """The spans of one process. Exported in the background; what does not fit its queue is dropped."""

    def __init__(self, provider: Any) -> None:
        """Take a provider of OpenTelemetry's SDK."""
        self._provider = provider
        self._tracer = provider.get_tracer("intarsia")

    def begin(
        self, name: str, *, parent: Span | str | None = None, kind: Kind = "internal", at_ns: int | None = None
    ) -> Span:
        """Begin a span, now or at `at_ns`. `parent` is a span of this process, or the header of another's.

        A header that is none of W3C's begins a trace of its own.
        """
        from opentelemetry.trace import SpanKind, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        if isinstance(parent, Span):
            context = set_span_in_context(parent.inner)
        else:
            header = parent if parent is not None and len(parent) <= MAX_TRACEPARENT else ""
            context = TraceContextTextMapPropagator().extract({TRACEPARENT: header}, context=_nothing())
        kinds = {
            "server": SpanKind.SERVER,
            "client": SpanKind.CLIENT,
            "internal": SpanKind.INTERNAL,
            "consumer": SpanKind.CONSUMER,
        }
        return Span(self._tracer.start_span(name, context=context, kind=kinds[kind], start_time=at_ns))

    def close(self) -> None:
        """Export what waits, and stop."""
        self._provider.shutdown()


def _nothing() -> Any:
    from opentelemetry.context import Context

    return Context()


def spans_of(service: str, environment: Mapping[str, str] = os.environ) -> Spans | None:
    """Return the spans of a process named `service`; None where no endpoint is set, or the extra is not installed.

    The SDK reads its other variables itself: OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS.
    """
    if not any(environment.get(name) for name in ENDPOINTS):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.error("%s is set, but the extra `telemetry` is not installed: nothing is traced", ENDPOINTS[0])
        return None
    named = {} if environment.get("OTEL_SERVICE_NAME") else {"service.name": service}
    provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Spans(provider)
