"""The GPU benchmarks from end to end on a model of two tiny layers: interpreted kernels, recorded graphs, a clock.

A program: `python -m tests.benchmarks.gpu.interpreted`, with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from triton.runtime.jit import JITFunction

from benchmarks.gpu import attention, layer, peers, peft, profile, records, steady, steps, sweep, table
from benchmarks.gpu.cases import StepCase, cases
from benchmarks.gpu.grid import points
from benchmarks.gpu.limits import CARDS, STEPS, kernel_lines, standard_step
from benchmarks.gpu.peers import Measured, Prefill
from benchmarks.gpu.program import EagerGraphs, leave_out
from benchmarks.gpu.records import RESULTS
from serving.runner import graphs
from tests.benchmarks.gpu.tiny import TINY
from tests.serving.runner.recorded_graphs import RecordedGraphs

CASES = (
    StepCase(1, 20, sampled=True),
    StepCase(1, 20, prompt=5, adapters=2),
    StepCase(prompt=5),
    StepCase(1, 20, adapters=9),
    StepCase(1, 200),
)
REPETITIONS = 2


class Interpreted:
    """`benchmarks.gpu.timing.Device` on a CPU: a call is made once per layer."""

    device = torch.device("cpu")
    dtype = torch.float32
    interpreted = True

    def seconds(self, call: Callable[[int], object], layers: int) -> float:
        began = time.perf_counter()
        for one in range(layers):
            call(one)
        return (time.perf_counter() - began) / layers

    def copy_bytes_per_second(self) -> float:
        return 1e12


def results(program: Callable[[], object]) -> list[dict[str, Any]]:
    """Run a stage's function, and return what it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[RESULTS] = str(Path(folder) / "some.jsonl")
        try:
            program()
        finally:
            named = Path(os.environ.pop(RESULTS))
        return list(records.read(named))


@contextmanager
def small(stage: ModuleType, **more: Any) -> Iterator[None]:
    """Let a stage's program find the tiny model, this machine as its device, and what else `more` names."""
    replaced = {"Cuda": Interpreted, "llama_3_8b": lambda layers=2: TINY}
    with ExitStack() as stack:
        for name, value in {**{key: new for key, new in replaced.items() if hasattr(stage, key)}, **more}.items():
            stack.enter_context(patch.object(stage, name, value))
        stack.enter_context(patch.object(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3"))
        stack.enter_context(patch.object(torch.cuda, "synchronize", lambda: None))
        stack.enter_context(patch.object(graphs, "CudaGraphs", RecordedGraphs))
        yield


def every_case_of_the_serving_benchmark_has_a_row_or_a_reason() -> None:
    made: list[steps.Bench] = []
    prepared = steps.make_bench

    def make(*arguments: Any) -> steps.Bench:
        made.append(prepared(*arguments))
        return made[0]

    fitting = {"ADAPTERS": 2, "_blocks_that_fit": lambda *_: 12, "make_bench": make}
    with small(steps, cases=lambda: CASES, REPETITIONS=REPETITIONS, **fitting):
        found = results(steps.main)
    rows = [record for record in found if record["record"] == "step"]
    assert [row["case"] for row in rows] == [case.name for case in CASES]
    for row in rows[:3]:
        assert row["step_ms"] > 0 and row["share"] > 0 and row["bound"] in ("bytes", "FLOP"), row
        assert 0 < row["share_of_nominal"] < row["share"], "the nominal bandwidth is above the copy's"
    assert "needs 9 adapters" in rows[3]["left_out"] and "KV blocks" in rows[4]["left_out"]
    assert [row["kind"] for row in rows[:3]] == ["decode", "mixed", "prefill"]
    assert not list(steps.rows_of(made[0], CASES, REPETITIONS, time.monotonic() - 1)), "a case began after the deadline"


def bars_are_shares_of_what_is_possible() -> None:
    alike = {"batch": 32, "context": 512, "adapters": 32, "sampled": False}
    decode = {"case": "decode", "kind": "decode", "step_ms": 9.0, "share": 0.74, **alike}
    mixed = {"case": "mixed", "kind": "mixed", "step_ms": 20.0, "share": 0.5, "prompt_flop_ms": 8.0, **alike}
    assert steps.missed_bars([{**decode, "share": 0.75}, {**mixed, "batch": 1}]) == []
    assert steps.missed_bars([decode, {**mixed, "step_ms": 20.1}]) == [
        "decode: 74% of its limit, 74% wanted",
        "mixed: 85% of decode and prompt apart, 85% wanted",
    ]


def the_same_steps_give_the_same_tokens_or_their_rows_are_named() -> None:
    class Answering:
        """Answers with the number of the step in this pass, or of the step in all passes."""

        steps, forgets = 0, True

        def launch(self, plan: Any) -> Any:
            if self.forgets and plan.chunks[0].start == 19:  # the first step of a pass
                self.steps = 0
            self.steps += 1
            answers = [SimpleNamespace(token_id=self.steps)] * len(plan.chunks)
            return SimpleNamespace(result=lambda: answers)

    answering = Answering()
    made = steps.Bench(TINY, Interpreted(), answering, 99, 2, 1e12, CARDS["H100"])
    with small(steady, make_bench=lambda *_: made, CASES=CASES[1:2]):
        found = results(steady.main)
    assert [record["changing_rows"] for record in found] == [[]]
    answering.forgets = False
    try:
        results(lambda: steady.check(made, CASES[1:2], 5))
    except AssertionError as error:
        assert "rows [0]" in str(error)
    else:
        raise AssertionError("changing tokens passed for steady ones")


def a_graph_left_out_computes_anew() -> None:
    x, out = torch.ones(3), torch.zeros(3)
    graph = EagerGraphs().record(lambda: torch.mul(x, 2, out=out))
    x += 1
    graph.replay()
    assert out.tolist() == [4.0] * 3


def every_kernel_of_a_layer_has_the_name_of_a_prediction() -> None:
    step = standard_step(3, 20, 2)
    with small(layer, standard_step=lambda: step, PROMPTS=(24,)):
        card, *found = results(layer.main)
    assert card == {"record": "card", "device": "NVIDIA H100 80GB HBM3", "copy_bytes_per_s": 1e12}
    assert all(record["record"] == "line" and record["us"] > 0 for record in found), found
    names = {record["line"] for record in found}
    predicted = {line.kernel for line in kernel_lines(TINY, CARDS["H100"])}
    assert {name for name in predicted if " tokens" not in name or name == "attend tokens"} <= names
    assert {"attend chunks, 24 tokens", "gate_up GEMM, 24 tokens"} <= names
    assert {group for group, _ in layer.kernels(TINY, Interpreted(), step, ())} >= set(profile.GROUPS)


def a_kernel_that_fails_is_named_and_the_others_are_measured() -> None:
    class Failing(Interpreted):
        calls = 0

        def seconds(self, call: Callable[[int], object], layers: int) -> float:
            self.calls += 1
            if self.calls == 6:
                raise RuntimeError("an illegal access")
            return 1e-6

    found = results(lambda: layer.measure(TINY, Failing(), standard_step(3, 20, 2), ()))
    failed = [record for record in found if record["record"] == "failed"]
    assert [(one["line"], one["problem"]) for one in failed] == [("qkv expand", "RuntimeError: an illegal access")]
    assert found[-1]["line"] == "head GEMM"


def attention_stands_beside_its_limit_and_sdpa_and_agrees_with_it() -> None:
    with small(attention, TOKENS=((3, 37),), PROMPTS=(40,)):
        found = results(attention.main)
    assert [row["case"] for row in found] == ["3 rows of 37", "prompt of 40"]
    for row in found:
        assert "wrong" not in row and row["us"] > 0 and row["sdpa_us"] > 0 and row["share"] > 0, row


def peers_are_measured_until_a_wrong_result_is_named_and_the_deadline_comes() -> None:
    wanted = points()[:3]

    def one(point: Any) -> Measured:
        if point == wanted[1]:
            raise RuntimeError("ours is wrong: relative error 0.5")
        return Measured(point, 1, 2, 3.0, {"ours": 4.0}, {"vllm": "not here"})

    prefill = Prefill(10.0, 12.0, 10.5)
    with small(peers, points=lambda: wanted, measure=lambda point, *_: one(point), measure_prefill=lambda _: prefill):
        notes, *found = results(peers.main)
    assert "tuned tables for the H200 alone" in notes["csgmv"]
    assert [record["record"] for record in found] == ["peers", "wrong", "peers", "prefill"]
    assert peers.measure_all(wanted, one, time.monotonic() - 1) == ([], 0)


def a_sweep_that_is_cut_short_leaves_the_sites_it_has_done() -> None:
    data = {"device": "NVIDIA Test 9000", "sites": {"32->32": {"split": 2}}}

    def sweep_of_one(budget: float, seed: int, keep: Callable[[dict[str, Any]], object]) -> None:
        assert budget > 0
        keep(data)

    with tempfile.TemporaryDirectory() as folder:
        here = SimpleNamespace(__file__=str(Path(folder) / "__init__.py"))
        with small(sweep, configs=here, sweep=sweep_of_one):
            (record,) = results(sweep.main)
        assert record["sites"] == data["sites"] and (Path(folder) / "NVIDIA_Test_9000.json").exists()


def the_profile_runs_attention_shrink_and_expand_and_falls_back_to_cupti() -> None:
    with small(profile, standard_step=lambda: standard_step(3, 20, 2)):
        assert [one.name for one in profile.targets()][-1] == "attend tokens"
    traced = [{"kernel": "expand_kernel", "ns": 6500.0}]
    with small(profile, with_nsight=lambda _: [], with_cupti=lambda: traced), patch.object(sys, "argv", ["profile"]):
        (record,) = results(profile.main)
    assert record == {"record": "profile", "source": "torch.profiler", **traced[0]}


def peft_writes_a_record_per_batch_size() -> None:
    model = SimpleNamespace(step_seconds=lambda batch, context, steps: 0.08)
    with small(peft, PeftModel=lambda *_: model):
        found = results(peft.main)
    assert [(record["batch"], record["step_ms"]) for record in found] == [(1, 80.0), (32, 80.0)]


def what_is_left_out_is_left_out() -> None:
    before, captured = JITFunction.run, graphs.CudaGraphs
    seen: list[dict[str, Any]] = []
    JITFunction.run = lambda self, *args, **kwargs: seen.append(kwargs)
    try:
        leave_out("")
        assert graphs.CudaGraphs is captured
        leave_out("pdl,graphs")
        JITFunction.run(None, launch_pdl=True, PDL=True, BLOCK=1)
        assert seen == [{"launch_pdl": False, "PDL": False, "BLOCK": 1}]
        assert graphs.CudaGraphs is EagerGraphs
    finally:
        JITFunction.run, graphs.CudaGraphs = before, captured  # type: ignore[misc]


def lines_of_the_table_are_measured_by_the_cases_that_the_run_has() -> None:
    measured = [steps.line_of(case) for case in cases()]
    assert set(STEPS) == {line for line in measured if line is not None}
    assert len([line for line in measured if line]) == len(STEPS), "a line is measured by two cases"
    eight = {"step_ms": 2.0, "layers": 8}
    whole = steps.scaled_us(eight, StepCase(32), CARDS["H100"])
    assert 6900 < whole < 7000, "the head, 354 µs, is not multiplied"
    assert steps.scaled_us({"step_ms": 2.0, "layers": 32}, StepCase(32), CARDS["H100"]) == 2000
    assert table.GROUPS


CHECKS = (
    every_case_of_the_serving_benchmark_has_a_row_or_a_reason,
    bars_are_shares_of_what_is_possible,
    the_same_steps_give_the_same_tokens_or_their_rows_are_named,
    a_graph_left_out_computes_anew,
    every_kernel_of_a_layer_has_the_name_of_a_prediction,
    a_kernel_that_fails_is_named_and_the_others_are_measured,
    attention_stands_beside_its_limit_and_sdpa_and_agrees_with_it,
    peers_are_measured_until_a_wrong_result_is_named_and_the_deadline_comes,
    a_sweep_that_is_cut_short_leaves_the_sites_it_has_done,
    the_profile_runs_attention_shrink_and_expand_and_falls_back_to_cupti,
    peft_writes_a_record_per_batch_size,
    what_is_left_out_is_left_out,
    lines_of_the_table_are_measured_by_the_cases_that_the_run_has,
)

if __name__ == "__main__":
    for check in CHECKS:
        began = time.monotonic()
        check()
        print(f"ok {check.__name__} {time.monotonic() - began:.1f} s", flush=True)
    sys.exit(0)
