"""The commands as an operator runs them: files in, pages and pictures out, refusals in words, nothing half written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from capacity.__main__ import main
from tests.capacity.plan_files import FINGERPRINT, profile, usage, write_usage

PRICES = """
currency = "USD"
[[price]]
name = "this machine"
accelerator = "machine"
hourly = "0.15"
source = "an invented figure"
date = 2026-11-01
"""
CATALOGUE = """
[[accelerator]]
name = "machine"
memory_gb = 8
bandwidth_tb_s = 0.01
tflops_bf16 = 1
watts = 30
dense = true
source = "its probe"
date = 2026-11-01
"""
PROMISES = """
alpha = 0.95
weeks = 1
[promises.standard]
ttft = 2.0
tpot = 0.2
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_usage(tmp_path, usage(calls=20_000.0))
    (tmp_path / "profile.json").write_bytes(msgspec.json.encode(profile()))
    for name, text in (("prices", PRICES), ("catalogue", CATALOGUE), ("promises", PROMISES)):
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path


def plan_flags(folder: Path, *more: str) -> list[str]:
    files = {name: str(folder / f"{name}.toml") for name in ("prices", "catalogue", "promises")}
    flags = [part for name, path in files.items() for part in (f"--{name}", path)]
    return [
        "plan",
        *("--usage", str(folder / "usage.json")),
        *("--profile", f"machine={folder / 'profile.json'}"),
        *flags,
        *("--requests", "120", "--seeds", "2", "--workers", "1", "--today", "2026-11-10", "--quiet"),
        *more,
    ]


def test_plan_then_review(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out"
    assert main(plan_flags(folder, "--out", str(out))) == 0
    page = capsys.readouterr().out
    assert page == (out / "plan.md").read_text() and "### 12. Fleet" in page
    html = (out / "plan.html").read_text()
    assert (
        html.count("<svg") == 6
        and html.count("<h3>") == 13
        and "<script" not in html
        and "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    )
    plan = json.loads((out / "plan.json").read_text())
    assert {f"{figure['name']}.svg" for figure in plan["figures"]} < {path.name for path in out.iterdir()}
    assert json.loads((out / "targets.json").read_text()) == plan["targets"]

    after: dict[str, Any] = usage(weeks=6, calls=20_000.0)
    after["bases"][FINGERPRINT]["times"] = {"standard": [[10, 100, 1000]] * 99 + [[10, 3000, 4000]]}
    write_usage(folder, after)
    assert main(["review", str(out / "plan.json"), "--usage", str(folder / "usage.json"), "--json"]) in (0, 1)
    found = json.loads(capsys.readouterr().out)
    (base,) = found["bases"]
    assert base["hours"] == 168 and base["wape"] < 0.1 and base["covered"] > 0.8
    assert base["attained"] == 0.99 and found["held"] == (base["stated"][0] <= 0.99)


def test_processes_side_by_side_make_the_same_plan(folder: Path) -> None:
    for workers in ("1", "2"):
        assert main([*plan_flags(folder, "--out", str(folder / workers)), "--workers", workers]) == 0
    names = {path.name for path in (folder / "1").iterdir()}
    assert names == {path.name for path in (folder / "2").iterdir()} and "plan.json" in names
    assert all((folder / "1" / name).read_bytes() == (folder / "2" / name).read_bytes() for name in names)


def test_forecast_of_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["forecast", "--usage", str(folder / "usage.json"), "--weeks", "1", "--out", str(folder / "out")]
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
        ("promises.toml", "alpha = 0.95", "alpha = 1.5", "alpha is 1.5"),
        ("promises.toml", "weeks = 1", "weeks = 1\nwishes = 2", "unknown field"),
        ("catalogue.toml", "dense = true\n", "", "without sparsity"),
        ("usage.json", '"hours": 840', '"hours": 839', "a count of 839 hours each"),
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


def test_planning_needs_neither_torch_nor_django() -> None:
    program = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'django', 'marketplace', 'billing'): raise ImportError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import capacity.__main__, capacity.commands.plan, capacity.commands.review\n"
        "print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr
