"""The command of a first run: without a GPU it says so at once; predictions are computed, and labelled as such."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import preflight, profile, records, stages, table
from benchmarks.gpu.cases import ADAPTERS, BATCHES, CONTEXTS, PROMPTS, cases
from benchmarks.gpu.limits import (
    CARDS,
    STEPS,
    Card,
    StepShape,
    card_named,
    kernel_lines,
    layer_works,
    predict_step,
    step_works,
    total,
)
from benchmarks.gpu.model import llama_3_8b
from benchmarks.gpu.stages import Outcome, Stage, Try
from tests import triton_setup

ROOT = Path(__file__).parents[3]
H100 = CARDS["H100"]
WHOLE = llama_3_8b()


def test_without_a_gpu_the_run_says_so_and_measures_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_cuda", lambda: (None, "torch 2.11.0 (built without CUDA) sees no device"))
    monkeypatch.setattr(preflight, "_version", lambda name: "1.0")
    assert command.main(["--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr()
    assert "no CUDA device: torch 2.11.0 (built without CUDA) sees no device; nothing was measured" in printed.err
    assert "--predict" in printed.err and not (tmp_path / "out").exists()


def test_missing_packages_are_named_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_cuda", lambda: ({"CUDA_device": "NVIDIA H100 80GB HBM3"}, ""))
    monkeypatch.setattr(preflight, "_version", lambda name: None if name in ("triton", "peft") else "1.0")
    monkeypatch.delenv("VLLM_WHEEL", raising=False)
    assert command.main(["--out", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert "these packages are missing: triton" in printed.err
    assert re.search(r"peft +not found: without it no .*PEFT peer", printed.out)
    assert re.search(r"\$VLLM_WHEEL +not set: vLLM's LoRA kernels are left out", printed.out)


def test_a_broken_driver_is_reported_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise RuntimeError("Found no NVIDIA driver on your system")

    monkeypatch.setattr("torch.cuda.is_available", broken)
    found = preflight.look()
    assert found.cuda is None and "no NVIDIA driver" in found.cuda_reason
    json.dumps(found.as_dict())


def test_a_run_writes_few_small_files_and_ends_with_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import sys; sys.path.insert(0, '.'); from benchmarks.gpu import records\n"
        "records.emit({'record': 'card', 'copy_bytes_per_s': 2.9e12})\n"
        "records.emit({'record': 'line', 'line': 'qkv GEMM', 'us': 19.0})\n"
    )
    fakes = tuple(Stage(f"{group} stage", group, ("-c", program), 1) for group in table.GROUPS)
    monkeypatch.setattr(stages, "STAGES", fakes)
    monkeypatch.setattr(preflight, "_cuda", lambda: ({"CUDA_device": "NVIDIA H100 80GB HBM3"}, ""))
    monkeypatch.setattr(preflight, "_version", lambda name: "1.0")
    assert command.main(["--out", str(tmp_path), "--minutes", "5"]) == 0
    files = sorted(path.name for path in tmp_path.iterdir())
    parts = sorted(f"{group}.jsonl" for group in table.GROUPS)
    assert files == sorted([*parts, "log.txt", "preflight.json", "stages.jsonl", "summary.md"]) and len(files) <= 8
    work = layer_works(WHOLE, StepShape((512,) * 32))["qkv GEMM"]
    share = 1e6 * work.seconds(2.9e12, H100.flops) / 19.0
    line = f"| qkv GEMM | 18.3 | 19.0 | {share:.0%} (bytes) |"
    assert line in capsys.readouterr().out and line in (tmp_path / "summary.md").read_text()
    # A part of a run elsewhere counts too; what is measured later counts more.
    later = tmp_path / "later"
    assert command.main(["--out", str(later), "--stages", "profile", "--earlier", str(tmp_path)]) == 0
    assert line in (later / "summary.md").read_text()


def test_predictions_alone_are_labelled_and_stand_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--predict"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Predicted, not measured.")
    assert table.predicted_page() in printed
    page = (ROOT / "docs" / "gpu.md").read_text()
    assert table.predicted_page() in page, "run `python -m benchmarks.gpu --predict` and put its table on the page"
    assert "not measured on a GPU" in page


def test_the_arithmetic_of_a_layer_is_that_of_the_design() -> None:
    """Megabytes and microseconds of one layer as docs and design have them, 32 rows of 32 adapters."""
    lines = {line.kernel: line for line in kernel_lines(WHOLE, H100)}
    for name, megabytes, limit in (
        ("qkv GEMM", 51, 17),
        ("gate_up GEMM", 237, 79),
        ("attend tokens", 68, 22.5),
        ("qkv expand", 7.1, 2.4),
        ("gate_up expand", 33, 11),
    ):
        assert lines[name].work.bytes / 1e6 == pytest.approx(megabytes, rel=0.02)
        assert lines[name].limit_us == pytest.approx(limit, rel=0.02) and lines[name].bound == "bytes"
    assert all(line.predicted_us > line.limit_us for line in lines.values())


def test_adapters_alone_cost_a_sixth_of_a_base_step_so_that_a_bar_of_a_tenth_would_be_impossible() -> None:
    base = predict_step("base", WHOLE, STEPS["step, 32 rows"], H100)
    tuned = predict_step("tuned", WHOLE, STEPS["step, 32 rows of 32 adapters"], H100)
    weights = 32 * 16 * 2 * WHOLE.num_layers * (3 * 4096 + 6144 + 4096 + 4096 + 2 * 4096 + 28672 + 14336 + 4096)
    assert weights / base.work.bytes == pytest.approx(0.156, abs=0.006)
    assert tuned.limit_us / base.limit_us - 1 > 0.15


def test_a_prompt_is_bound_by_operations_and_counts_only_pairs_that_are_seen() -> None:
    works = layer_works(WHOLE, StepShape(chunks=((0, 4),)))
    assert works["attend chunks"].flops == 4 * (1 + 2 + 3 + 4) * WHOLE.q_size
    beside = layer_works(WHOLE, StepShape(chunks=((100, 4),)))
    assert beside["attend chunks"].flops == 4 * (4 * 100 + 10) * WHOLE.q_size
    whole = total(step_works(WHOLE, StepShape(chunks=((0, 8192),))).values())
    assert whole.bound(H100.copy, H100.flops) == "FLOP"


def test_cases_cover_what_the_benchmark_promises_and_each_is_measured_once() -> None:
    found = cases()
    assert len(found) == len(set(found))
    decode = [case for case in found if case.kind == "decode" and not case.sampled]
    assert {case.batch for case in decode if case.context == 512} == set(BATCHES)
    assert {case.adapters for case in decode} == set(ADAPTERS)
    assert {case.context for case in decode} == {512, *CONTEXTS}
    assert {case.prompt for case in found if case.kind == "prefill"} == set(PROMPTS)
    assert any(case.sampled for case in found) and any(case.kind == "mixed" for case in found)
    assert [case.batch for case in found[:2]] == [32, 1], "the most telling cases come first"


def test_cards_are_known_by_name() -> None:
    assert card_named("NVIDIA H100 80GB HBM3") is CARDS["H100"] and card_named("NVIDIA H200") is CARDS["H200"]
    assert card_named("NVIDIA A100-SXM4-80GB") is None
    text = table.summary([], {"cuda": {"CUDA_device": "NVIDIA A100"}}, [], 5)
    assert "The card is unknown" in text and "No stage has ended yet" in text


def test_correctness_comes_first_and_staging_last_of_it_and_every_program_exists() -> None:
    groups = [stage.group for stage in stages.STAGES]
    assert groups == sorted(groups, key=table.GROUPS.index)
    checks = [stage for stage in stages.STAGES if stage.group == "correctness"]
    assert "tests/lora_kernels/test_staging.py" in checks[-1].arguments
    for stage in stages.STAGES:
        module = stage.arguments[2]
        where = ROOT / (module.replace(".", "/") + ".py") if module != "pytest" else ROOT / stage.arguments[-1]
        assert where.is_file(), f"{stage.name} runs {where}"


def test_every_program_of_cases_that_a_gpu_can_run_is_a_check() -> None:
    programs = {stage.arguments[2] for stage in stages.STAGES if stage.group == "correctness"}
    assert {"tests.serving.kernels.triton_cases", "tests.serving.runner.gpu_cases"} <= programs
    assert "tests.serving.runner.overlap_cases" in programs and "tests.serving.runner.host_cases" not in programs


def test_the_commands_of_the_page_are_understood() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text()
    commands = re.findall(r"(?m)^python -m benchmarks\.gpu (.*?)\s+#", page)
    assert len(commands) == 4
    for words in commands:
        command._parser().parse_args(words.split())
    for module in re.findall(r"python -m (benchmarks\.[\w.]*\w)", page):
        file = ROOT / module.replace(".", "/")
        assert file.with_suffix(".py").is_file() or (file / "__main__.py").is_file(), module


def test_stages_are_chosen_by_group() -> None:
    assert {stage.group for stage in stages.stages_of(("sweep", "profile"))} == {"sweep", "profile"}
    with pytest.raises(SystemExit):
        command.main(["--stages", "figures,speed"])


def test_the_summary_says_what_helped_and_what_was_scaled(tmp_path: Path) -> None:
    stage = Stage("check", "correctness", (), 1)
    outcome = Outcome(stage, (Try("wrong", 2.0), Try("ok", 3.0, 0, "pdl", "8")))
    records.append(tmp_path / "figures.jsonl", {"record": "line", "line": "step, 1 row", "us": 6500, "layers": 8})
    records.append(tmp_path / "figures.jsonl", {"record": "failed", "line": "qkv expand", "problem": "illegal access"})
    records.append(tmp_path / "correctness.jsonl", {"record": "steady", "case": "32 rows", "changing_rows": [3]})
    text = table.summary([tmp_path], {}, [outcome], 25)
    assert "- failed: qkv expand: illegal access" in text and "- changing: 32 rows: rows [3]" in text
    assert "| correctness | check | ok | 5 | right without programmatic launch; with 8 layers" in text
    assert "fewer layers" in text and "| step, 1 row | 5747.6 | 6500.0 | 77% (bytes) |" in text


def test_the_limit_takes_the_copy_bandwidth_of_the_run_and_predictions_keep_theirs() -> None:
    measured = table.card_of("NVIDIA H200", {"copy_bytes_per_s": 4.1e12})
    assert measured == Card("H200", 4.8e12, 4.1e12, 989e12)
    assert table.card_of("NVIDIA H200", {}) == CARDS["H200"]


@pytest.mark.parametrize(
    ("text", "kernels"),
    [
        (
            '==PROF== Connected\nnoise\n"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
            '"0","_attend","gpu__time_duration.sum","ns","28,100"\n'
            '"0","_attend","launch__registers_per_thread","r","96"\n"1","shrink_kernel","other.metric","x","1"\n',
            [{"kernel": "_attend", "ns": 28100.0, "registers": 96.0}],
        ),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", []),
        ("", []),
    ],
    ids=["counters", "no permission", "nothing"],
)
def test_counters_of_nsight_are_read_whatever_stands_around_them(text: str, kernels: Sequence[object]) -> None:
    assert list(profile.counted(text)) == kernels


def test_a_trace_gives_durations_registers_and_occupancy_of_our_kernels() -> None:
    events = [
        {"cat": "kernel", "name": "expand_kernel", "dur": 6.5, "args": {"registers per thread": 56, "stream": 7}},
        {"cat": "kernel", "name": "gemm", "dur": 80.0, "args": {}},
        {"cat": "cpu_op", "name": "expand", "dur": 1.0},
    ]
    assert list(profile.traced(events)) == [{"kernel": "expand_kernel", "ns": 6500.0, "registers": 56}]


@pytest.mark.deep
def test_every_stage_s_program_runs_on_a_tiny_model_under_the_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.gpu.interpreted"],
        cwd=ROOT,
        env=triton_setup.environment("3.6.0", interpret=True),
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("\nok ") >= 9, done.stdout[-2000:]
