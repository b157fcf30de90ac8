"""Tests that go through a long list: `make test` takes an eighth of it by the commit, `make test-all` takes all.

A test marked `picked` has an argument `pick`, which takes the list and returns what is left of it.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from devstack.state import REPOSITORY

T = TypeVar("T")
Pick = Callable[[list[Any]], list[Any]]


def eighth_of(things: Sequence[T]) -> list[T]:
    """Return every eighth thing, from the one on that the commit's hash picks; where there is no commit, the first."""
    first = 0
    if git := shutil.which("git"):
        done = subprocess.run([git, "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        first = int(done.stdout.strip() or "0", 16) % 8 if done.returncode == 0 else 0
    return list(things[first::8])


picked = pytest.mark.parametrize(
    "pick", [pytest.param(list, id="all", marks=pytest.mark.deep), pytest.param(eighth_of, id="an eighth")]
)
