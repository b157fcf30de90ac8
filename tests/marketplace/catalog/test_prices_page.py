"""docs/prices.md says what the code does: its examples run."""

from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "prices.md"


def test_the_examples_on_the_page_run() -> None:
    results = doctest.testfile(str(PAGE), module_relative=False)
    assert results.attempted >= 7 and results.failed == 0
