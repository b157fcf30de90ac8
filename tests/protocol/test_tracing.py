"""Spans: off without an endpoint, exported over OTLP with one, and joined by W3C's header."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from protocol.tracing import Spans, spans_of

CALLERS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def kept() -> tuple[Spans, InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Spans(provider), exporter


def test_without_an_endpoint_nothing_is_traced_or_imported() -> None:
    assert spans_of("x", {}) is None
    look = (
        "import sys, protocol.tracing as t; assert t.spans_of('x', {}) is None; "
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", look], check=True)


def test_a_header_of_another_process_is_the_parent_and_nonsense_is_not(kept) -> None:
    spans, exporter = kept
    child = spans.begin("a", parent=CALLERS, kind="server")
    grandchild = spans.begin("b", parent=child.traceparent)
    assert child.traceparent.startswith("00-0af7651916cd43dd8448eb211c80319c-") and child.traceparent.endswith("-01")
    grandchild.end(error="refused")
    child.end()
    for nonsense in ("", "00-xyz", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", CALLERS + "-" + "x" * 500):
        spans.begin("alone", parent=nonsense).end()
    inner, outer, *alone = exporter.get_finished_spans()
    assert (inner.parent.span_id, inner.context.trace_id) == (outer.context.span_id, outer.context.trace_id)
    assert f"{outer.parent.span_id:016x}" == "b7ad6b7169203331"
    assert inner.attributes == {"error.type": "refused"} and not inner.status.is_ok
    assert len(alone) == 4 and all(span.parent is None for span in alone)


def test_spans_arrive_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived: list[ExportTraceServiceRequest] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            arrived.append(ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
        spans = spans_of("intarsia-test")
        assert spans is not None
        span = spans.begin("a", parent=CALLERS)
        span.set(gen_ai__request__model="maker/thing", intarsia__steps=3)
        span.end()
        spans.close()
        server.shutdown()
    (resource,) = arrived[0].resource_spans
    names = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert names["service.name"] == "intarsia-test"
    (sent,) = resource.scope_spans[0].spans
    attributes = {one.key: one.value.string_value or one.value.int_value for one in sent.attributes}
    assert attributes == {"gen_ai.request.model": "maker/thing", "intarsia.steps": 3}
    assert sent.trace_id.hex() == CALLERS[3:35]
