"""`python -m capacity` as a process of its own: without credentials, with limits, and with nothing of ours imported."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import marketplace
from marketplace.planning.errors import NotMade

SECONDS = 240  # of wall time; a plan takes half of it on two cores
_CPU_SECONDS = 480
_MEMORY_BYTES = 4 << 30
_MOST_RESULT = 16 << 20
_HOME = Path(marketplace.__file__).parent.parent  # where `capacity` is: a clone, or the installed packages


def run_capacity(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run one command, and return the JSON that it printed. `folder` is its home.

    Raises NotMade: with the command's own words where it refused.
    """
    command = [sys.executable, "-m", "capacity", *arguments, "--json", "--quiet"]
    try:
        done = subprocess.run(
            command,
            cwd=_HOME,
            env={"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "OMP_NUM_THREADS": "2", "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            preexec_fn=_limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotMade(f"it took longer than {SECONDS} seconds: plan fewer bases, accelerators or classes") from None
    if done.returncode not in (0, 1):  # 1: a plan that did not hold, which is an answer
        raise NotMade(_last_words(done.stderr, done.returncode))
    if len(done.stdout) > _MOST_RESULT:
        raise NotMade("the command's result is too large")
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise NotMade("the command's result cannot be read")
    return found


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files into a folder of one's own."""
    for name, content in files.items():
        (folder / name).write_text(content)


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def _last_words(stderr: bytes, code: int) -> str:
    text = stderr[-4000:].decode(errors="replace").strip()
    if "No module named" in text:
        return "planning is not installed beside the worker: install the extra `capacity` (docs/capacity.md)"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else f"the command ended with {code}")[:2000]
