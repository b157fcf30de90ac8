"""The trace of steps: what it keeps, and that Chrome's viewer can read it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

from serving.kernels.forward import PARTS
from serving.trace import NO_TRACE, Trace
from tests.native_caller import needs_compiler
from tests.serving.harness import running
from tests.serving.tiny import ADAPTERS, Tiny


def test_spans_nest_and_carry_their_sizes(tmp_path: Path) -> None:
    trace = Trace()
    with trace.span("step", rows=3), trace.span("launch"):
        time.sleep(0.002)
    trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = {event["name"]: event for event in events if event["ph"] == "X"}
    assert spans["step"]["args"] == {"rows": 3}
    inner, outer = spans["launch"], spans["step"]
    assert inner["dur"] >= 2000 and outer["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


def test_a_span_that_raises_is_kept_and_the_error_goes_on() -> None:
    trace = Trace()
    try:
        with trace.span("launch"):
            raise RuntimeError("no")
    except RuntimeError:
        pass
    assert [event["name"] for event in trace.events() if event["ph"] == "X"] == ["launch"]


def test_old_spans_give_way_and_threads_are_named() -> None:
    trace = Trace(capacity=5)

    def work() -> None:
        for index in range(9):
            with trace.span(f"s{index}"):
                pass

    thread = threading.Thread(target=work, name="engine")
    thread.start()
    thread.join()
    events = trace.events()
    assert [event["name"] for event in events if event["ph"] == "X"] == [f"s{index}" for index in range(4, 9)]
    assert [event["args"] for event in events if event["ph"] == "M"] == [{"name": "engine"}]


def test_without_a_trace_a_span_is_nothing() -> None:
    with NO_TRACE.span("plan", rows=1) as nothing:
        assert nothing is None


def test_the_end_writes_the_file_and_a_disk_that_refuses_hurts_nobody(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace.json")
    with trace.span("plan"):
        pass
    trace.close()
    assert len(json.loads((tmp_path / "trace.json").read_text())["traceEvents"]) == 2
    Trace(tmp_path / "missing" / "trace.json").close()
    assert not (tmp_path / "missing").exists()


@needs_compiler
async def test_a_replica_traces_what_each_forward_pass_spent_its_time_on(tiny: Tiny, tmp_path: Path) -> None:
    async with running(tiny, trace=tmp_path / "trace.json") as run:
        for adapter in (None, *ADAPTERS):
            await run.tokens(range(3, 40), adapter, tokens=4)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    passes = [event for event in events if event["name"] == "forward"]
    launches = [event for event in events if event["name"] == "launch"]
    assert len(passes) == len(launches) > 4
    for event, launch in zip(passes, launches, strict=True):
        parts = {name.removesuffix("_ms"): value for name, value in event["args"].items()}
        assert set(parts) == set(PARTS) and min(parts.values()) >= 0
        assert parts["products"] > 0 and parts["attention"] > 0 and sum(parts.values()) * 1000 <= event["dur"]
        assert (parts["adapters"] > 0) == (launch["args"]["adapters"] > 0)
