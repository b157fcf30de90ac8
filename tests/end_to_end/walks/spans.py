"""A collector of OpenTelemetry in a thread: keeps the spans that the platform's processes send over OTLP/HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Sent:
    """One span: the process that sent it, and the span itself."""

    service: str
    span: Any


class Collector:
    """The spans that arrived. `raw` is every byte of them."""

    def __init__(self) -> None:
        self.url = ""
        self.raw: list[bytes] = []
        self._sent: list[Sent] = []

    def take(self, content: bytes) -> None:
        """Keep one message of the exporter."""
        self.raw.append(content)
        for resource in ExportTraceServiceRequest.FromString(content).resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                self._sent += [Sent(names["service.name"], span) for span in scope.spans]

    def trace_of(self, prediction_id: str, *, wanted: set[str], seconds: float = 60) -> dict[str, Sent]:
        """Return the spans of a prediction's trace by name, once the wanted ones are there."""
        deadline = time.monotonic() + seconds
        while True:
            sent = list(self._sent)
            traces = {one.span.trace_id for one in sent if prediction_id in _values(one.span)}
            found = {one.span.name: one for one in sent if one.span.trace_id in traces}
            if wanted <= set(found):
                assert len(traces) == 1
                return found
            assert time.monotonic() < deadline, (prediction_id, sorted(found), len(sent))
            time.sleep(0.1)


def _values(span: Any) -> set[str]:
    return {one.value.string_value for one in span.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port."""
    collector = Collector()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        collector.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield collector
        server.shutdown()
