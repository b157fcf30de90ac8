"""The page of results, and the folder that results of a machine belong to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import machine, results


def test_a_page_that_is_out_of_date_and_a_file_of_another_machine_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    monkeypatch.setattr(results, "PAGE", tmp_path / "RESULTS.md")
    about = {"cpu": "AMD EPYC", "family_model_stepping": "25/1/1", "instruction_sets": ["avx2"], "cores": 8}
    about |= {"gpus": [], "memory_gib": 16, "torch": "2", "load_1_5_15_min": [0.0], "architecture": "x86_64"}
    machine.write_suite(tmp_path / "zen3-8-cores", "serving_gpu", {"machine": about, "rows": []})
    assert results.main([]) == 0 and results.main(["--check"]) == 0
    results.PAGE.write_text("old")
    (tmp_path / "zen3-8-cores").rename(tmp_path / "zen4-8-cores")
    capsys.readouterr()
    assert results.main(["--check"]) == 1
    told = capsys.readouterr().err
    assert "serving_gpu.json was measured on zen3-8-cores" in told and "RESULTS.md is not what the files say" in told
    assert results.PAGE.read_text() == "old", "a check writes nothing"


@pytest.mark.parametrize(
    ("cpu", "family", "features", "kind"),
    [
        ("AMD EPYC", "25/1/1", ["avx2"], "zen3-8-cores"),
        ("AMD EPYC", "25/17/1", ["avx2", "avx512f"], "zen4-8-cores"),
        ("Intel(R) Xeon(R)", "6/143/8", ["avx2", "avx512f", "avx512_bf16", "amx_bf16"], "amx-bf16-8-cores"),
        ("Neoverse-V2", "?/?/?", ["asimd"], "asimd-8-cores"),
        ("mystery", "?/?/?", [], "riscv64-8-cores"),
    ],
)
def test_a_kind_is_the_generation_or_the_newest_instructions(
    cpu: str, family: str, features: list[str], kind: str
) -> None:
    about = {
        "cpu": cpu,
        "family_model_stepping": family,
        "instruction_sets": features,
        "architecture": "riscv64",
        "cores": 8,
    }
    assert machine.cpu_kind(about) == kind


def test_a_suite_is_written_into_a_new_folder(tmp_path: Path) -> None:
    file = machine.write_suite(tmp_path / "kind", "suite", {"figure": 1})
    assert file == tmp_path / "kind" / "suite.json" and json.loads(file.read_text()) == {"figure": 1}


def test_rows_of_the_gpu_s_steps_become_a_table_with_reasons_for_what_is_missing(tmp_path: Path) -> None:
    measured = {"step_ms": 9.1, "limit_ms": 6.8, "bound": "bytes", "share": 0.75, "share_of_nominal": 0.67}
    rows = [
        {"case": "32 rows of 512", **measured, "tokens_per_s": 3516, "peft_ms": 80.0},
        {"case": "32 rows of 32768", "left_out": "needs 65537 KV blocks and has 16384"},
    ]
    file = machine.write_suite(tmp_path, "serving_gpu", {"rows": rows})
    text = results.RENDERERS["serving_gpu"](file)
    assert "| 32 rows of 512 | 9.10 | 6.80 (bytes) | 75% | 67% | 3516 | 80.0 |" in text
    assert "left out: needs 65537 KV blocks" in text
