"""The eighth of a long list that `make test` takes, another one for other commits; `make test-all` takes all."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from typing import TypeVar

from devstack.state import REPOSITORY

T = TypeVar("T")


def eighth_of(things: Sequence[T]) -> list[T]:
    """Return every eighth thing, from the one on that the commit's hash picks; where there is no commit, the first."""
    first = 0
    if git := shutil.which("git"):
        done = subprocess.run([git, "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        first = int(done.stdout.strip() or "0", 16) % 8 if done.returncode == 0 else 0
    return list(things[first::8])
