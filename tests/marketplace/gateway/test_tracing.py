"""One tree of spans from the caller's `traceparent` through the gateway to the replica, without any text."""

from __future__ import annotations

import re

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from protocol.messages import PREDICTION_HEADER
from protocol.tracing import Spans
from tests.marketplace.gateway.conftest import World

pytestmark = pytest.mark.asyncio(loop_scope="module")
CALLERS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "the patient's name is Ada"


@pytest.fixture
def exporter(world: World, monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(world.gateway, "_spans", Spans(provider))
    return exporter


async def test_a_prediction_is_one_tree(world: World, exporter: InMemorySpanExporter) -> None:
    body = world.body(messages=[{"role": "user", "content": SECRET}])
    answer = await world.http.post("/v1/chat/completions", json=body, headers={"traceparent": CALLERS})
    assert answer.status == 200
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"chat maker/thing", "authenticate", "admit", "hold", "dispatch", "settle", "answer"}
    root = spans.pop("chat maker/thing")
    assert f"{root.context.trace_id:032x}" == CALLERS[3:35] and f"{root.parent.span_id:016x}" == CALLERS[36:52]
    assert {span.parent.span_id for span in spans.values()} == {root.context.span_id}
    assert root.attributes["gen_ai.request.model"] == "maker/thing"
    assert root.attributes["gen_ai.usage.input_tokens"] == 10 and root.attributes["gen_ai.usage.output_tokens"] == 5
    assert root.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert root.attributes["intarsia.prediction_id"] == answer.headers[PREDICTION_HEADER]
    found = re.search(r"'[Tt]raceparent': '([^']+)'", world.replica.received[0])
    assert found is not None
    assert found[1] == f"00-{root.context.trace_id:032x}-{spans['dispatch'].context.span_id:016x}-01"
    text = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert SECRET not in text and "answer is" not in text and world.key_text not in text


async def test_a_refusal_ends_the_tree_with_its_code(world: World, exporter: InMemorySpanExporter) -> None:
    world.replica.mode = "refuse"
    assert (await world.http.post("/v1/chat/completions", json=world.body())).status == 429
    assert (await world.http.post("/v1/chat/completions", json=world.body(model="maker/nothing"))).status == 404
    errors = [span.attributes.get("error.type") for span in exporter.get_finished_spans() if span.parent is None]
    assert errors == ["queue_full", "model_not_found"]


async def test_without_an_endpoint_the_replica_gets_no_header(world: World) -> None:
    assert (await world.http.post("/v1/chat/completions", json=world.body())).status == 200
    assert "traceparent" not in world.replica.received[0].lower()
