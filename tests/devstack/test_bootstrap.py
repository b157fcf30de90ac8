"""The bootstrap runs before there is a virtual environment."""

from __future__ import annotations

import subprocess
import sys

from devstack.state import REPOSITORY


def test_the_bootstrap_needs_nothing_but_the_standard_library() -> None:
    command = [sys.executable, "-S", "-m", "devstack.bootstrap", "--help"]  # -S: no site-packages
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "--dev" in done.stdout
