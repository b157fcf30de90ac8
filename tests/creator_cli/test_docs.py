"""Every example of docs/cli.md works, in its order."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from creator_cli.lazy_commands import COMMANDS
from tests.creator_cli.adapters import BASE_CONFIG, write_adapter, write_base, write_listing
from tests.creator_cli.conftest import Machine
from tests.creator_cli.test_canary import endpoint

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
EXAMPLES = re.findall(r"^\$ intarsia (.*)$", PAGE.read_text(), re.MULTILINE)


def test_every_example_of_the_page_works(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("creator_cli.commands.init.has_terminal", lambda: True)
    machine.platform.tokens.add("ik_from_the_dashboard")
    write_adapter(tmp_path / "my-adapter")
    write_listing(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(BASE_CONFIG))
    write_base(tmp_path / "base")
    (tmp_path / "rows.jsonl").write_text('{"message": "POS 11", "expected": {"category": "dining"}}\n')
    (tmp_path / "token.txt").write_text("ik_from_the_dashboard\n")
    assert len(EXAMPLES) > 20
    with endpoint(lambda _: "groceries") as (stranger, _):
        for example in EXAMPLES:
            here = example.replace("https://intarsia.example", machine.running.url)
            arguments, _, source = here.replace("https://api.example.com/v1", stranger).partition(" < ")
            machine.platform.scopes = ["account" if arguments.startswith("payouts") else "publish"]
            if arguments.startswith("appeal"):
                machine.platform.refuse_reviewed("acme/triage", 1)
            stdin = Path(source).read_text() if source else "\n" * 20 if arguments.startswith("init") else None
            result = machine.run(*shlex.split(arguments), stdin=stdin)
            assert result.exit_code == 0, f"{example}\n{result.output}"


def test_the_page_names_every_command() -> None:
    named = {example.split()[0] for example in EXAMPLES} | {"logout"}
    assert {command.name for command in COMMANDS} <= named
