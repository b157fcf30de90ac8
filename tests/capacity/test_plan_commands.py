"""The commands as an operator runs them: files in, pages and pictures out, refusals in words, nothing half written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capacity.__main__ import main
from tests.capacity.conftest import Planned
from tests.capacity.plan_files import FINGERPRINT, plan_flags, usage, write_files, write_usage


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path)


def test_plan_then_review(planned: Planned, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plan = planned.out, planned.document
    assert planned.page == (out / "plan.md").read_text() and "### 12. Fleet" in planned.page
    html = (out / "plan.html").read_text()
    assert (
        html.count("<svg") == 6
        and html.count("<h3>") == 13
        and "<script" not in html
        and "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    )
    assert {f"{figure['name']}.svg" for figure in plan["figures"]} < {path.name for path in out.iterdir()}
    assert json.loads((out / "targets.json").read_text()) == plan["targets"]

    after: dict[str, Any] = usage(weeks=4)
    after["bases"][FINGERPRINT]["times"] = {"standard": [[10, 100, 1000]] * 99 + [[10, 3000, 4000]]}
    later = write_usage(tmp_path, after)
    assert main(["review", str(out / "plan.json"), "--usage", str(later), "--json"]) in (0, 1)
    found = json.loads(capsys.readouterr().out)
    (base,) = found["bases"]
    assert base["hours"] == 168 and base["wape"] < 0.1 and base["covered"] > 0.8
    assert base["attained"] == 0.99 and found["held"] == (base["stated"][0] <= 0.99)


@pytest.mark.deep
def test_processes_side_by_side_make_the_same_bytes_as_one_made_before(planned: Planned, tmp_path: Path) -> None:
    assert main([*plan_flags(planned.files, "--out", str(tmp_path / "out")), "--workers", "2"]) == 0
    first, again = ({path.name: path.read_bytes() for path in out.iterdir()} for out in (planned.out, tmp_path / "out"))
    assert again == first and "plan.json" in first


def test_forecast_of_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    five = write_usage(folder, usage(weeks=5))
    flags = ["forecast", "--usage", str(five), "--weeks", "1", "--out", str(folder / "out")]
    assert main(flags) == 0
    page = capsys.readouterr().out
    assert "| small | 7 |" in page and "last week again" in page
    assert (folder / "out" / f"demand-{FINGERPRINT[:12]}.svg").exists()
    assert main([*flags, "--event", "2026-11-05/2026-11-06/2", "--json"]) == 0
    (base,) = json.loads(capsys.readouterr().out)["bases"]
    assert len(base["median"]) == 168 and base["backtest"]["origins"] == 2


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        (
            "prices.toml",
            'currency = "USD"',
            'currency = "USD"\n[[price]]\nname = "b"\ncurrency = "EUR"',
            "one currency",
        ),
        ("promises.toml", "alpha = 0.9", "alpha = 1.5", "alpha is 1.5"),
        ("promises.toml", "weeks = 1", "weeks = 1\nwishes = 2", "unknown field"),
        ("catalogue.toml", "dense = true\n", "", "without sparsity"),
        ("usage.json", '"hours": 504', '"hours": 503', "a count of 503 hours each"),
        ("usage.json", '"format": 1', '"format": 2', "format 2"),
        ("profile.json", '"format":2', '"format":7', "calibrate again"),
    ],
)
def test_bad_files_are_refused_and_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, old: str, new: str, words: str
) -> None:
    path = folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert main(plan_flags(folder, "--out", str(folder / "out"))) == 2
    said = capsys.readouterr()
    assert words in said.err and said.err.startswith("error: step") and not said.out
    assert not (folder / "out").exists()
