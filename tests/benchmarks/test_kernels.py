"""The benchmark's own arithmetic: what it aggregates, refuses and keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import machine
from benchmarks.kernels import contenders, cpu, report
from benchmarks.kernels.__main__ import main
from benchmarks.kernels.cpu import Measured, WrongResult
from benchmarks.kernels.grid import DTYPES, NAMED, SHAPES, Point, make_inputs, points
from benchmarks.kernels.limits import WORKING_SETS, Limits
from benchmarks.kernels.timing import interleaved_medians

LIMITS = Limits(dict.fromkeys(WORKING_SETS, 1e9), {"float32": 1e9, "bfloat16": 1e9})


def measured(point: Point, ours: float, peer: float, base: float = 1.0) -> Measured:
    return Measured(point, 2, {"ours": ours, "peft_loop": 2 * peer, "grouped_mm": peer, "base_gemm": base}, ours / 2)


def test_the_whole_grid_has_no_point_with_more_adapters_than_rows() -> None:
    grid = points(quick=False)
    assert len(grid) == len(set(grid)) == 288
    assert all(point.distinct <= point.rows for point in grid)
    assert set(points(quick=True)) < set(grid)
    assert sum((point.shape, point.rows, point.distinct, point.rank) == NAMED for point in grid) == len(DTYPES)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES[:3])
@pytest.mark.parametrize(("rows", "distinct"), [(1, 1), (8, 8), (16, 8)])
def test_every_contender_computes_the_same(dtype: str, shape, rows: int, distinct: int) -> None:
    inputs = make_inputs(Point(dtype, shape, rows, distinct, 8), seed=1)
    before, expected = inputs.y.clone(), inputs.expected()
    assert torch.equal(inputs.y, before)
    for name, prepare in {"ours": contenders.ours, **contenders.PEERS}.items():
        try:
            step = prepare(inputs)
        except contenders.Unsupported:
            continue
        cpu._check(name, step, inputs, expected)
        assert torch.equal(inputs.y, before)


def test_a_contender_with_a_wrong_result_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "PEERS", {"does_nothing": lambda inputs: lambda y: None})
    with pytest.raises(WrongResult, match="does_nothing"):
        next(cpu.measure([points(quick=True)[0]], seed=0, limits=LIMITS, vllm_ops=None, deadline=float("inf")))


def test_nothing_is_measured_after_the_deadline() -> None:
    assert not list(cpu.measure(points(quick=True), seed=0, limits=LIMITS, vllm_ops=None, deadline=0.0))


def test_aggregates_hold_only_when_every_bar_is_met() -> None:
    ordinary, named = Point("float32", SHAPES[1], 32, 8, 8), Point("float32", *NAMED)
    (good,) = report.aggregates([measured(ordinary, 1, 4), measured(named, 0.2, 0.8)])
    assert good.holds and good.geometric_mean == pytest.approx(4) and good.named_share == pytest.approx(0.2)
    assert good.ceiling == pytest.approx(8)
    (slow,) = report.aggregates([measured(ordinary, 1, 40), measured(named, 0.2, 0.18)])
    assert not slow.holds and slow.slower_points == 1 and "r=16" in slow.worst_point
    (heavy,) = report.aggregates([measured(named, 0.21, 2)])
    assert not heavy.holds


def test_a_close_point_is_measured_anew_with_more_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    first = {"ours": 1.0, "close": 0.9, "far": 9.0, cpu.BASE: 1.2}
    asked: list[tuple[set[str], int]] = []

    def medians(calls: dict[str, object], samples: int = cpu.SAMPLES) -> dict[str, float]:
        asked.append((set(calls), samples))
        return first if len(asked) == 1 else {"ours": 1.0, "close": 1.3}

    monkeypatch.setattr(cpu, "interleaved_medians", medians)
    monkeypatch.setattr(cpu, "PEERS", {"close": contenders.ours, "far": contenders.ours})
    (result,) = cpu.measure([points(quick=True)[0]], seed=0, limits=LIMITS, vllm_ops=None, deadline=float("inf"))
    assert asked == [(set(first), 9), ({"ours", "close"}, 45)]
    assert result.seconds == {"ours": 1.0, "close": 1.3, "far": 9.0, cpu.BASE: 1.2}


def test_results_survive_a_file(tmp_path: Path) -> None:
    results = [measured(Point("float32", *NAMED), 0.1, 0.8), measured(Point("bfloat16", SHAPES[1], 8, 1, 64), 1, 2)]
    report.write_json(tmp_path / "r.json", results, {"machine": machine.describe()})
    assert report.read_json(tmp_path / "r.json") == results
    assert json.loads((tmp_path / "r.json").read_text())["machine"]["torch"] == torch.__version__


def test_a_hopelessly_slow_contender_is_not_repeated() -> None:
    calls = {"fast": 0, "slow": 0}

    def count(name: str, work: int) -> None:
        calls[name] += 1
        sum(range(work))

    seconds = interleaved_medians({"fast": lambda: count("fast", 10), "slow": lambda: count("slow", 3_000_000)})
    assert seconds["fast"] < seconds["slow"]
    assert calls["slow"] == 4 and calls["fast"] > 20


def test_the_limit_is_whichever_binds() -> None:
    point = Point("float32", SHAPES[0], 512, 1, 64)
    compute = Limits(dict.fromkeys(WORKING_SETS, 1e15), {"float32": 1e9, "bfloat16": 1e8})
    memory = Limits(dict.fromkeys(WORKING_SETS, 1e9), {"float32": 1e15, "bfloat16": 1e15})
    assert compute.seconds(point) == pytest.approx(2 * 512 * 64 * (576 + 1536) / 1e9)
    assert memory.seconds(point) == pytest.approx((64 * (576 + 1536) + 512 * (576 + 2 * 1536)) * 4 / 1e9)


def test_a_spent_budget_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.kernels.__main__.measure_limits", lambda: LIMITS)
    before = torch.get_num_threads()
    assert main(["--device", "cpu", "--budget", "0", "--threads", str(before), "--out", str(tmp_path)]) == 1
    assert not list(tmp_path.iterdir())


def test_the_machine_is_described_by_plain_values() -> None:
    about = machine.describe()
    assert json.loads(json.dumps(about)) == about
    assert about["cpu"] and about["cores"]
