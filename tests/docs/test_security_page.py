"""The security page names tests that exist, and every claim in its tables names one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from devstack.state import REPOSITORY

PAGE = (REPOSITORY / "docs" / "security.md").read_text()
HEAD = ["attacker", "asset", "control", "test"]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_test_named_on_the_security_page_exists() -> None:
    missing = [f"{file}::{name}" for file, name in NAMED.findall(PAGE) if name not in _tests_of(REPOSITORY / file)]
    assert missing == []


def test_every_row_of_the_security_page_is_complete_and_names_a_test() -> None:
    for row in _rows():
        assert len(row) == len(HEAD) and all(row), row
        assert NAMED.search(row[-1]), f"no test is named for: {row[2]}"


def test_a_test_that_does_not_exist_is_noticed() -> None:
    here = Path(__file__)
    assert "test_a_test_that_does_not_exist_is_noticed" in _tests_of(here)
    assert "test_nothing" not in _tests_of(here) and _tests_of(here.parent / "no_such_file.py") == frozenset()


def test_every_section_has_a_table_or_states_limits() -> None:
    sections = re.split(r"(?m)^## ", PAGE)[1:]
    assert sections[-1].startswith("Limits of the promise\n")
    for section in sections[:-1]:
        assert "| attacker | asset | control | test |" in section, section.splitlines()[0]


def _rows() -> list[list[str]]:
    """Return the cells of every table row but heads and rules."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row != HEAD and set("".join(row)) != {"-"}]


@cache
def _tests_of(path: Path) -> frozenset[str]:
    """Return the names of the functions of one test file; none when there is no such file."""
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )
