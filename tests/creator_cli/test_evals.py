"""`intarsia eval`: what leaves the machine, what is refused before anything does, and what is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.creator_cli.adapters import write_adapter, write_listing
from tests.creator_cli.conftest import Machine

ROWS = b"".join(
    json.dumps({"message": f"kanarienvogel {number}", "expected": {"category": label}}).encode() + b"\n"
    for number, label in enumerate(("dining", "income", "dining"))
)
PUSH = ("--model", "acme/triage", "--scorer", "label", "--field", "category", "--yes")


@pytest.fixture
def rows(machine: Machine, tmp_path: Path) -> Path:
    """Rows on the machine of a creator whose model is for sale."""
    machine.login()
    adapter, listing = write_adapter(tmp_path / "adapter"), write_listing(tmp_path / "listing")
    machine.ok("push", str(adapter), "--listing", str(listing), "--publish")
    path = tmp_path / "rows.jsonl"
    path.write_bytes(ROWS)
    return path


def test_rows_are_sealed_here_and_measured_there(machine: Machine, rows: Path) -> None:
    result = machine.ok("eval", "push", str(rows), *PUSH)
    assert "2 of 3 (66.7 %)" in result.stdout and "20.0 to 94.0 %" in result.stdout and "0.600" in result.stdout
    assert "at most $0.005" in result.output
    (read,) = machine.platform.evals.read
    assert [row.expected for row in read] == [{"category": label} for label in ("dining", "income", "dining")]
    (part,) = [machine.platform.parts[one] for one in machine.platform.evals.sets]
    assert b"kanarienvogel" not in bytes(part)
    assert not any(b"kanarienvogel" in body for body in machine.platform.bodies)
    again = machine.json("eval", "run", "acme/triage", "--set", "1", "--budget", "0.001", "--yes")
    assert again["run"]["budget_nano_usd"] == 1_000_000 and again["evaluation"]["correct"] == 2
    assert len(machine.json("eval", "list", "acme/triage")) == 2
    assert "done" in machine.ok("eval", "list", "acme/triage").stdout


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (ROWS + b'{"message": "' + b"x" * 70_000 + b'", "expected": "dining"}\n', "row 4: must have at most 64 KB"),
        (ROWS + b'{"message": "\xff", "expected": "dining"}\n', "row 4: must be UTF-8"),
        (ROWS + ROWS, "row 4: repeats the messages of row 1"),
        (b"", "row 1: must be one JSON object"),
        (ROWS + b'{"message": "x", "expected": "travel"}\n', "row 4: `expected` is outside the values of 'category'"),
    ],
)
def test_bad_rows_are_refused_before_anything_is_sent(machine: Machine, rows: Path, data: bytes, reason: str) -> None:
    schema = {"properties": {"category": {"enum": ["dining", "income"]}}}
    for version in machine.platform.versions.values():
        version["contract"] = {"output_schema": schema}
    rows.write_bytes(data)
    result = machine.run("eval", "push", str(rows), *PUSH)
    assert result.exit_code == 2 and reason in result.output
    assert machine.platform.evals.sets == {}


def test_a_failed_run_says_why(machine: Machine, rows: Path) -> None:
    machine.platform.evals.failure = "the budget of the run is used up"
    result = machine.run("eval", "push", str(rows), *PUSH)
    assert result.exit_code == 1 and "the budget of the run is used up" in result.output
    assert "2 of 3" not in result.output


@pytest.mark.parametrize(
    "options",
    [
        ("--scorer", "model"),
        ("--scorer", "label", "--field", "a", "--field", "b"),
        ("--scorer", "fields"),
        ("--scorer", "json", "--tolerance", "1"),
    ],
)
def test_another_scorer_is_refused(machine: Machine, rows: Path, options: tuple[str, ...]) -> None:
    result = machine.run("eval", "push", str(rows), "--model", "acme/triage", *options, "--yes")
    assert result.exit_code == 2 and machine.platform.evals.sets == {}


def test_the_price_is_asked_about_first(machine: Machine, rows: Path) -> None:
    result = machine.run("eval", "push", str(rows), *[one for one in PUSH if one != "--yes"])
    assert result.exit_code == 2 and "--yes" in result.output
    assert machine.platform.evals.runs == []


def test_a_guard_is_put_before_the_model_with_rows_that_are_there(machine: Machine, rows: Path) -> None:
    machine.ok("eval", "push", str(rows), *PUSH)
    result = machine.ok("eval", "run", "acme/triage", "--guard", "intarsia/guard", "--yes")
    assert "intarsia/guard@1 guards acme/triage" in result.stdout and "0 of 3 honest rows" in result.stdout
    found = machine.json("eval", "run", "acme/triage", "--guard", "intarsia/guard", "--yes")
    assert found["guard"]["threshold_milli"] == 1_250 and found["run"]["guard"] == "intarsia/guard"
    assert [run["guard"] for run in machine.json("eval", "list", "acme/triage")] == ["intarsia/guard"] * 2 + [None]
