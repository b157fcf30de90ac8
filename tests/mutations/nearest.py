"""Pytest plugin (`-p tests.mutations.nearest`): the tests nearest to a fault run first, then the cheapest.

Which tests run is not changed, so neither is the verdict; a fault that is caught is caught in seconds. With ALONE in
the environment the nearest run alone: a first look, which cannot say that a fault survives.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiers.durations import Durations

FAULTY = "INTARSIA_FAULTY_FILE"  # of the tree, as `billing/refunds.py`
ALONE = "INTARSIA_NEAREST_TESTS_ALONE"


def distance(test_file: Path, faulty: Path) -> int:
    """Return 0 for tests named after the module, 1 for those whose file names it or its package, 2 for others."""
    if faulty.stem in test_file.stem:
        return 0
    module = faulty.with_suffix("").parts
    names = [faulty.stem, ".".join(module), *([".".join(module[:-1])] if len(module) > 2 else [])]
    return 1 if re.search(rf"\b(?:{'|'.join(map(re.escape, names))})\b", test_file.read_text("utf-8")) else 2


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Import no file of tests that are not among the nearest, where those run alone."""
    alone = os.environ.get(ALONE) and collection_path.is_file() and collection_path.suffix == ".py"
    return True if alone and distance(collection_path, Path(os.environ[FAULTY])) > 1 else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Order by nearness and time once everybody else has ordered; a file's tests stay together."""
    yield
    faulty, durations = Path(os.environ[FAULTY]), Durations.read()
    seconds: dict[Path, float] = {}
    for item in items:
        seconds[item.path] = seconds.get(item.path, 0.0) + durations.of(item.nodeid)
    places = {file: (distance(file, faulty), seconds[file], file) for file in seconds}
    items.sort(key=lambda item: places[item.path])
