"""The table of commands agrees with the commands, and nothing is imported before it is needed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from creator_cli.lazy_commands import COMMANDS, LazyCommand

HEAVY = ("httpx", "numpy", "cryptography", "sealed_weights", "creator_cli.commands.account")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_table_says_what_the_command_says(command: LazyCommand) -> None:
    loaded = command.load()
    assert loaded.help.partition("\n\n")[0].replace("\n", " ") == command.summary


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_and_version_import_no_command(arguments: list[str]) -> None:
    script = (
        "import sys\n"
        "from creator_cli.main import app\n"
        f"app({arguments!r}, standalone_mode=False)\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""


def test_a_command_that_is_not_there_is_a_usage_error_with_a_suggestion() -> None:
    done = subprocess.run([sys.executable, "-m", "creator_cli", "pus"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "No such command 'pus'" in done.stderr and "'push'" in done.stderr


@pytest.mark.parametrize(
    ("words", "offered"),
    [("intarsia pa", "payouts"), ("intarsia keys ro", "rotate"), ("intarsia login --no", "--no-browser")],
)
def test_the_shell_completes_commands_and_options(words: str, offered: str) -> None:
    asked = {"_INTARSIA_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-c", "from creator_cli.main import main; main()"]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == [offered], done.stderr
