"""The commands of docs/capacity.md, as they stand there: those that need no engine are run, the others are parsed.

The calibration of a real engine has its own test (`tests/serving/calibration`).
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import msgspec
import pytest

from capacity.__main__ import main
from capacity.usage import read_usage
from devstack.state import REPOSITORY
from tests.capacity.plan_files import FINGERPRINT, usage, write_usage
from tests.capacity.profiles import profile
from tests.capacity.worked_example import blocks_of, make_example, written_blocks

PAGE = (REPOSITORY / "docs" / "capacity.md").read_text()
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.S)
COMMANDS = [line.removeprefix("$ ") for block in BLOCKS for line in block.splitlines() if line.startswith("$ ")]
NEEDS_AN_ENGINE = {"calibrate", "check"}
QUICK = {"plan": ["--requests", "20", "--seeds", "2", "--workers", "1"], "curve": ["--requests", "20", "--seeds", "2"]}


def test_the_page_names_every_command() -> None:
    named = {shlex.split(line)[3] for line in COMMANDS if line.startswith("python -m capacity")}
    assert named == {"calibrate", "curve", "plan", "forecast", "check", "review"}
    assert "python manage.py usage_file > usage.json" in COMMANDS


@pytest.mark.deep
def test_the_worked_example_has_the_numbers_of_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    plan = make_example(PAGE, tmp_path)
    assert [step["number"] for step in plan["steps"]] == list(range(1, 14))
    titles = re.findall(r"(?m)^### (\d+)\. (.*)$", PAGE)
    assert titles == [(str(step["number"]), step["title"]) for step in plan["steps"]]
    assert written_blocks(PAGE) == blocks_of(plan)


def test_commands_run_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _copy_examples(tmp_path)
    monkeypatch.chdir(tmp_path)
    write_usage(tmp_path, usage())
    (tmp_path / "profile.json").write_bytes(msgspec.json.encode(profile()))
    for line in COMMANDS:
        words = shlex.split(line)
        if words[:3] != ["python", "-m", "capacity"]:
            continue
        arguments = words[3:]
        if arguments[0] in NEEDS_AN_ENGINE or arguments[-1] == "example":  # the worked example has its own test
            continue
        if arguments[0] == "review":
            write_usage(tmp_path, usage(weeks=4))  # a week later
        effort = QUICK.get(arguments[0], [])  # what is tested is that it runs, not how sure it is
        assert main([*arguments, *effort, "--quiet"]) in (0, 1), line
    assert {"plan.html", "plan.md", "plan.json", "targets.json"} <= {
        path.name for path in (tmp_path / "plan").iterdir()
    }
    assert (tmp_path / "curve.svg").exists()
    assert json.loads((tmp_path / "plan" / "plan.json").read_text())["promised"][0]["base"] == FINGERPRINT
    assert read_usage(tmp_path / "usage.json").hours == 4 * 168


def _copy_examples(folder: Path) -> None:
    """Copy the examples with a promise that few simulated calls can prove."""
    (folder / "examples" / "plan").mkdir(parents=True)
    for name in ("capacity.toml", "plan/catalogue.toml", "plan/prices.toml", "plan/promises.toml"):
        text = (REPOSITORY / "examples" / name).read_text()
        (folder / "examples" / name).write_text(re.sub(r"(?m)^alpha = 0\.\d+", "alpha = 0.8", text))


@pytest.mark.parametrize("command", sorted(NEEDS_AN_ENGINE))
def test_commands_of_an_engine_parse_and_say_what_is_missing(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profile.json").write_bytes(msgspec.json.encode(profile()))
    lines = [one for one in COMMANDS if one.startswith(f"python -m capacity {command}")]
    line, outside = (next(one for one in lines if flag in one) for flag in ("--model", "--url"))
    assert main([*shlex.split(outside.replace("8100", "9"))[3:], "--quiet"]) == 2
    assert "no replica answers at http://127.0.0.1:9" in capsys.readouterr().err
    assert main(shlex.split(line)[3:]) == 2
    assert "models/tiny" in capsys.readouterr().err
