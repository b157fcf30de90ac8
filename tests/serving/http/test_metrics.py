"""/metrics shows the names that docs/operations.md lists, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from serving.http.metrics import Gauge, Metrics
from serving.platform.kv_reader import HttpsTransport, KvReader, kv_gauges
from serving.platform.receipts import ReceiptSigner
from tests.serving.http.server import serving
from tests.serving.tiny import Tiny

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


async def test_every_metric_is_listed_and_every_listed_one_exists(tiny: Tiny) -> None:
    rows = re.findall(r"^\| ((?:`intarsia_\w+`(?:, )?)+) \|", PAGE.read_text(), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    async with serving(tiny) as server:
        await server.openai.completions.create(
            model="r4", prompt="abc", max_tokens=3, temperature=0, extra_body={"ignore_eos": True}
        )
        text = (await server.http.get("/metrics")).text
        own = (
            Metrics(
                server.engine, [Gauge("journal_lag_seconds", "", lambda: 1.5), Gauge("confinement_missing", "", float)]
            )
            .exposition()
            .decode()
        )
    families = text_string_to_metric_families(text)
    shown = {family.name: family for family in families if not family.name.endswith("_created")}
    assert "intarsia_journal_lag_seconds 1.5" in own
    reader = KvReader(server.engine, HttpsTransport(ReceiptSigner("ab" * 32)), "")
    with_platform = {gauge.name for gauge in kv_gauges(server.engine, reader)}
    with_platform |= {"confinement_missing", "journal_lag_seconds"}
    assert sorted(listed) == sorted({*shown, *(f"intarsia_{name}" for name in with_platform)})
    samples = {(s.name, tuple(s.labels.items())): s.value for family in shown.values() for s in family.samples}
    assert samples[("intarsia_ttft_seconds_count", ())] == 1 and samples[("intarsia_itl_seconds_count", ())] == 2
    assert samples[("intarsia_queue_depth", (("class", "standard"),))] == 0
    assert samples[("intarsia_answered_total", (("class", "standard"),))] >= 1
    assert samples[("intarsia_adapters", (("state", "ready"),))] == 1
    assert samples[("intarsia_adapter_loads_total", ())] == 1
