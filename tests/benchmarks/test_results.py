"""The page of results, and the folder that results of a machine belong to."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import chart, machine, results


def test_a_page_that_is_out_of_date_and_a_file_of_another_machine_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    monkeypatch.setattr(results, "PAGE", tmp_path / "RESULTS.md")
    about = {"cpu": "AMD EPYC", "family_model_stepping": "25/1/1", "instruction_sets": ["avx2"], "cores": 8}
    about |= {"gpus": [], "memory_gib": 16, "torch": "2", "load_1_5_15_min": [0.0], "architecture": "x86_64"}
    monkeypatch.setattr(chart, "FILE", tmp_path / "chart.svg")
    machine.write_suite(tmp_path / "zen3-8-cores", "pages", {"machine": about}, ["Nothing was measured."])
    assert results.main([]) == 0 and results.main(["--check"]) == 0
    results.PAGE.write_text("old")
    (tmp_path / "zen3-8-cores").rename(tmp_path / "zen4-8-cores")
    capsys.readouterr()
    chart.FILE.write_text("old")
    assert results.main(["--check"]) == 1
    told = capsys.readouterr().err
    assert "pages.json was measured on zen3-8-cores" in told and "RESULTS.md is not what the results say" in told
    assert "chart.svg is not what the results say" in told
    assert results.PAGE.read_text() == chart.FILE.read_text() == "old", "a check writes nothing"


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
    parts = ["Text.", ["line", "line"], machine.table(["a"], [["µ"]])]
    file = machine.write_suite(tmp_path / "kind", "suite", {"figure": 1}, parts)
    written = json.loads(file.read_text())
    assert file == tmp_path / "kind" / "suite.json" and written["parts"] == parts and written["figure"] == 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", written["date"]) and '["µ"]' in file.read_text()


def test_parts_are_shown_as_paragraphs_lines_and_tables() -> None:
    shown = results.markdown(["Said.", ["a  ", " b"], machine.table(["x", ""], [[1, "–"]])])
    assert shown == "Said.\n\n```\na\n b\n```\n\n| x |  |\n|---|---|\n| 1 | – |"


def test_the_chart_has_each_panel_s_figures_its_machine_and_its_day() -> None:
    drawn = chart.drawn()
    for panel in chart.PANELS:
        result = json.loads((machine.RESULTS / panel.file).read_text())
        for label, value in panel.bars(result):
            assert f">{label}</text>" in drawn
            assert f">{value:,.0f}</text>" in drawn or f">{value:.1f}</text>" in drawn, label
        assert result["machine"]["cpu"] in drawn and result["date"] in drawn
    assert len(set(re.findall(r"vLLM|PEFT|LiteLLM", drawn))) == 3
