"""The spans of a request in a real replica: under the gateway's, stage by stage, without any text."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from protocol.tracing import Spans
from tests.serving.http.server import serving
from tests.serving.tiny import Tiny

CALLERS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_queue_load_prefill_and_decode_are_spans_of_one_trace(tiny: Tiny, monkeypatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("serving.http.app.spans_of", lambda service: Spans(provider))
    async with serving(tiny) as server:
        name = next(one for one in (await server.http.get("/v1/models")).json()["data"] if one["id"] != "base")["id"]
        body = {"model": name, "prompt": "a secret thing", "max_tokens": 5, "ignore_eos": True}
        answer = await server.http.post("/v1/completions", json=body, headers={"traceparent": CALLERS})
        assert answer.status_code == 200
        assert (await server.http.post("/v1/completions", json={"model": "no", "prompt": "x"})).status_code == 404
        spans = list(exporter.get_finished_spans())
    *stages, root, refused = spans
    assert [span.name for span in stages] == ["load adapter", "queue", "prefill", "decode"]
    assert f"{root.context.trace_id:032x}" == CALLERS[3:35] and f"{root.parent.span_id:016x}" == CALLERS[36:52]
    assert {span.parent.span_id for span in stages} == {root.context.span_id}
    assert all(root.start_time <= span.end_time <= root.end_time + 1_000_000 for span in stages)
    assert root.attributes["gen_ai.usage.output_tokens"] == 5 and root.attributes["intarsia.steps"] >= 5
    assert refused.attributes["error.type"] == "refused" and refused.parent is None
    assert "secret thing" not in "".join(span.to_json() for span in spans)
