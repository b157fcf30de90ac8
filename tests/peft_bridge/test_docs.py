"""Every example of docs/converting.md works, in its order."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from creator_cli.main import app
from sealed_weights import parse_reference
from tests.peft_bridge.folders import write_method, write_pissa

PAGE = (Path(__file__).parents[2] / "docs" / "converting.md").read_text()
EXAMPLES = re.findall(r"^\$ intarsia (.*)$", PAGE, re.MULTILINE)


def test_every_example_of_the_page_works(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(home / "base", tmp_path / "base")
    for method in ("loha", "vera"):
        write_method(tmp_path / method, home / "base", method)
    trained, initial = write_pissa(tmp_path / "written", home / "base")
    trained.rename(tmp_path / "pissa")
    initial.rename(tmp_path / "pissa-initial")
    contract = {"contract": 1, "instructions": "Name the category.", "max_tokens": 6}
    (tmp_path / "loha" / "contract.json").write_text(json.dumps(contract))
    (tmp_path / "rows.jsonl").write_text('{"message": "POS 11", "expected": {"category": "dining"}}\n')
    monkeypatch.chdir(tmp_path)
    assert len(EXAMPLES) >= 6
    for example in EXAMPLES:
        result = CliRunner().invoke(app, shlex.split(example))
        assert result.exit_code == 0, f"{example}\n{result.output}"
    assert (tmp_path / "judged" / "reference.json").exists()


def test_the_example_of_the_file_is_one_but_for_its_shortened_digest() -> None:
    (shown,) = re.findall(r"```json\n(.*?)\n```", PAGE, re.DOTALL)
    assert parse_reference(shown.replace("5f1a…", "5f" * 32).encode()).dtype == "bfloat16"
