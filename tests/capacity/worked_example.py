"""The worked example of docs/capacity.md: its plan, and the lines of it that stand there.

`python -m tests.capacity.worked_example` writes them anew.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capacity.__main__ import main
from devstack.state import REPOSITORY

PAGE = REPOSITORY / "docs" / "capacity.md"
WIDTH = 120
_BLOCK = re.compile(r"```text\n(.*?)```", re.S)
_COMMAND = re.compile(r"^\$ (python -m capacity plan .*--out example)$", re.M)


def example_section(page: str) -> tuple[int, int]:
    """Return where the worked example begins and ends."""
    return page.index("## The 13 steps"), page.index("## Busy is not load")


def make_example(page: str, folder: Path) -> dict[str, Any]:
    """Run the page's command with its folder in `folder`, and return the plan. The working folder is the repository."""
    (command,) = _COMMAND.findall(page)
    arguments = shlex.split(command)[3:]
    arguments[arguments.index("--out") + 1] = str(folder)
    assert main([*arguments, "--quiet", "--workers", "1"]) == 0
    found: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    return found


def blocks_of(plan: Mapping[str, Any]) -> list[str]:
    """Return the text blocks of the section: the summary, then one for each step."""
    steps = [f"{step['worked']}\n→ {step['result']} ({step['source']})" for step in plan["steps"]]
    return [_wrapped("\n".join(plan["summary"])), *map(_wrapped, steps)]


def written_blocks(page: str) -> list[str]:
    """Return the text blocks that stand in the section."""
    first, last = example_section(page)
    return _BLOCK.findall(page[first:last])


def _wrapped(text: str) -> str:
    lines = (textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False) for line in text.splitlines())
    return "\n".join(lines) + "\n"


def _renew() -> None:
    os.chdir(REPOSITORY)
    page = PAGE.read_text()
    with tempfile.TemporaryDirectory() as folder:
        blocks = iter(blocks_of(make_example(page, Path(folder))))
    first, last = example_section(page)
    section = _BLOCK.sub(lambda _: f"```text\n{next(blocks)}```", page[first:last])
    PAGE.write_text(page[:first] + section + page[last:])


if __name__ == "__main__":
    _renew()
