"""A run whose stages fail, hang, run out of memory or write nonsense goes on, keeps its time, says what happened."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.gpu import records, stages, table
from benchmarks.gpu.stages import Outcome, Stage

BEGINNING = """
import json, os, signal, subprocess, sys, time
def emit(**record):
    with open(os.environ["GPU_RUN_RESULTS"], "a") as stream:
        stream.write(json.dumps(record) + "\\n")
"""


def fake(name: str, program: str, *, share: float = 1, group: str = "figures", suspects: bool = False) -> Stage:
    return Stage(name, group, ("-c", BEGINNING + program), share, suspects)


def names(outcomes: Sequence[Outcome]) -> str:
    return ", ".join(f"{one.stage.name} {one.status}" for one in outcomes)


def run_all(out: Path, *wanted: Stage, seconds: float = 120.0) -> list[Outcome]:
    return stages.run_stages(wanted, out, seconds + stages.KEPT_BACK, names)


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "LEAST_SECONDS", 0.05)
    monkeypatch.setattr(stages, "GRACE", 0.3)


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_the_end_of(processes: Sequence[int]) -> None:
    """Return once none of them lives. One that outlived its stage would sleep for ten minutes."""
    patience = time.monotonic() + 300
    while any(map(is_alive, processes)):
        assert time.monotonic() < patience, "a process outlived its stage"
        time.sleep(0.05)


def test_a_stage_that_fails_leaves_its_results_and_the_next_one_runs(tmp_path: Path) -> None:
    outcomes = run_all(
        tmp_path,
        fake("bad", "emit(record='line', line='one', us=3.5); sys.exit('it broke')"),
        fake("good", "emit(record='line', line='two', us=4)"),
    )
    assert [one.status for one in outcomes] == ["failed", "ok"]
    found, _ = table.measurements([tmp_path])
    assert {line: measured.us for line, measured in found.items()} == {"one": 3.5, "two": 4.0}
    assert "it broke" in (tmp_path / "log.txt").read_text()
    assert (tmp_path / "summary.md").read_text() == "bad failed, good ok"
    written = list(records.read(tmp_path / "stages.jsonl"))
    assert [(one["stage"], one["status"], one["tries"][0]["code"]) for one in written] == [
        ("bad", "failed", 1),
        ("good", "ok", 0),
    ]


@pytest.mark.parametrize("deaf", [False, True], ids=["heeds SIGTERM", "ignores SIGTERM"])
def test_a_stage_that_hangs_ends_at_its_limit_with_all_its_children(tmp_path: Path, deaf: bool) -> None:
    program = f"""
if {deaf}: signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
emit(processes=[os.getpid(), child.pid])
time.sleep(600)
"""
    # 4 s for an interpreter to start in, and two minutes for the next one.
    outcomes = run_all(tmp_path, fake("stuck", program), fake("next", "emit(ok=1)", share=30), seconds=124)
    assert [one.status for one in outcomes] == ["hung", "ok"]
    assert outcomes[0].note == "ended by force at its limit"
    first, *_ = records.read(tmp_path / "figures.jsonl")
    wait_for_the_end_of(first["processes"])


def test_a_child_left_behind_by_a_stage_that_ended_well_is_ended_too(tmp_path: Path) -> None:
    program = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
emit(processes=[child.pid])
"""
    (outcome,) = run_all(tmp_path, fake("leaky", program))
    assert outcome.status == "ok"
    (record,) = records.read(tmp_path / "figures.jsonl")
    wait_for_the_end_of(record["processes"])


@pytest.mark.parametrize(
    "death",
    ["sys.exit(77)", "sys.exit('torch.OutOfMemoryError: CUDA out of memory')", "os.kill(os.getpid(), signal.SIGKILL)"],
    ids=["status", "message", "killed by the kernel"],
)
def test_a_stage_out_of_memory_is_tried_with_eight_layers_and_later_ones_begin_so(tmp_path: Path, death: str) -> None:
    program = f"""
layers = os.environ["GPU_RUN_LAYERS"]
emit(layers=layers)
if not layers: {death}
"""
    outcomes = run_all(tmp_path, fake("large", program), fake("next", program))
    assert [one.status for one in outcomes] == ["ok", "ok"]
    assert outcomes[0].note == "with 8 layers, after running out of memory"
    assert [record["layers"] for record in records.read(tmp_path / "figures.jsonl")] == ["", "8", "8"]


def test_a_stage_without_memory_for_eight_layers_is_tried_no_third_time(tmp_path: Path) -> None:
    outcomes = run_all(tmp_path, fake("huge", "emit(n=1); sys.exit(77)"), fake("next", "pass"))
    assert [one.status for one in outcomes] == ["out of memory", "ok"] and len(outcomes[0].tries) == 2


@pytest.mark.parametrize(
    ("culprit", "note", "tries"),
    [
        ("pdl", "right without programmatic launch", 2),
        ("graphs", "right without graphs either", 3),
        ("nothing", "wrong even without graphs either", 3),
    ],
)
def test_wrong_numbers_are_tried_again_with_less_and_what_helped_is_said(
    tmp_path: Path, culprit: str, note: str, tries: int
) -> None:
    program = f"sys.exit(78 * ({culprit!r} not in os.environ['GPU_RUN_WITHOUT'].split(',')))"
    later = "emit(without=os.environ['GPU_RUN_WITHOUT'])"
    outcomes = run_all(tmp_path, fake("check", program, suspects=True), fake("figures", later))
    assert (len(outcomes[0].tries), outcomes[0].note) == (tries, note)
    (record,) = records.read(tmp_path / "figures.jsonl")
    # Later stages leave out what had to be left out, and nothing where nothing helped.
    assert record["without"] == {"pdl": "pdl", "graphs": "pdl,graphs", "nothing": ""}[culprit]


def test_garbage_and_half_a_record_neither_stop_the_run_nor_hide_what_follows(tmp_path: Path) -> None:
    garbage = """
sys.stdout.buffer.write(os.urandom(1 << 20)); sys.stdout.flush()
with open(os.environ["GPU_RUN_RESULTS"], "ab") as stream:
    stream.write(b'[1, 2]\\n"text"\\n\\xff\\xfe\\n{"record": "line", "line": "half", "us": 12')
    stream.flush()
    os._exit(1)
"""
    good = """
sys.path.insert(0, os.getcwd())
from benchmarks.gpu import records
records.emit({"record": "line", "line": "whole", "us": 5})
emit(record="line", line="nonsense", us="fast")
"""
    outcomes = run_all(tmp_path, fake("garbage", garbage), fake("good", good))
    assert [one.status for one in outcomes] == ["failed", "ok"]
    assert set(table.measurements([tmp_path])[0]) == {"whole"}
    assert (tmp_path / "log.txt").stat().st_size < 1 << 19


def test_the_whole_budget_is_kept_and_stages_beyond_it_are_named(tmp_path: Path) -> None:
    hang = "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    outcomes = run_all(
        tmp_path, *(fake(f"stage {n}", hang) for n in range(3)), fake("last", "pass", share=0.001), seconds=3
    )
    assert [one.status for one in outcomes] == ["hung", "hung", "hung", "not started"]
    assert "last not started" in (tmp_path / "summary.md").read_text()


def test_time_that_a_stage_saves_goes_to_the_ones_after_it() -> None:
    wanted = [fake("a", "", share=1), fake("b", "", share=2), fake("c", "", share=1)]
    assert [stages.limit_of(wanted, n, 100.0) for n in range(3)] == pytest.approx([25, 200 / 3, 100])


def test_files_stay_below_what_can_be_carried_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST_BYTES", 2000)
    outcomes = run_all(tmp_path, fake("many", "for n in range(500): emit(n=n)\nprint('x' * 5000)"))
    assert outcomes[0].status == "ok"
    assert all(file.stat().st_size <= 2000 for file in tmp_path.iterdir())
    kept = [record["n"] for record in records.read(tmp_path / "figures.jsonl")]
    assert kept == list(range(len(kept))) and len(kept) > 100


def test_a_missing_package_is_no_reason_to_try_again(tmp_path: Path) -> None:
    (outcome,) = run_all(tmp_path, fake("needy", "import no_such_package_here", suspects=True))
    assert outcome.status == "package missing" and len(outcome.tries) == 1


def test_records_survive_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    records.append(file, {"name": "µ", "path": tmp_path})
    assert list(records.read(file)) == [{"name": "µ", "path": str(tmp_path)}]
    records.write_whole(file, json.dumps({"a": 1}))
    assert list(records.read(file)) == [{"a": 1}] and os.listdir(tmp_path) == ["some.jsonl"]


@pytest.mark.deep
@pytest.mark.parametrize(("module", "status"), [("this", 0), ("tests.benchmarks.gpu.no_such_module", 1)])
def test_a_stage_s_program_runs_in_a_process_of_its_own(tmp_path: Path, module: str, status: int) -> None:
    stage = Stage("alone", "figures", ("-m", "benchmarks.gpu.program", module), 1)
    tried = stages.run_once(stage, tmp_path / "figures.jsonl", 120.0, "", "")
    assert tried.code == status, tried.output
