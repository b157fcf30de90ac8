"""`python -m capacity` as a process of its own: without credentials, with limits, and with nothing of ours imported."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import marketplace
from marketplace.planning.errors import NotMade

SECONDS = 480  # of wall time; a plan takes half of it on two cores
_CPU_SECONDS = 960
_MEMORY_BYTES = 4 << 30
_MOST_RESULT = 16 << 20
_HOME = Path(marketplace.__file__).parent.parent  # where `capacity` is: a clone, or the installed packages


def run_capacity(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run one command, and return the JSON that it printed. `folder` is its home.

    Raises NotMade: with the command's own words where it refused.
    """
    code, stdout, stderr = _run([sys.executable, "-m", "capacity", *arguments, "--json", "--quiet"], folder)
    if code not in (0, 1):  # 1: a plan that did not hold, which is an answer
        raise NotMade(_last_words(stderr, code, folder))
    if len(stdout) > _MOST_RESULT:
        raise NotMade("the command's result is too large")
    try:
        found = None if rb"\u0000" in stdout else json.loads(stdout, parse_constant=_no_number)
    except ValueError:
        found = None
    if not isinstance(found, dict):  # a traceback ends with 1, too
        raise NotMade(_last_words(stderr, code, folder) if stderr.strip() else "the command's result cannot be read")
    return found


def _run(command: list[str], folder: Path) -> tuple[int, bytes, bytes]:
    process = subprocess.Popen(
        command,
        cwd=_HOME,
        env={"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "OMP_NUM_THREADS": "2", "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_limit,
        start_new_session=True,  # a group of its own: the processes that simulate end with it
    )
    try:
        stdout, stderr = process.communicate(timeout=SECONDS)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if isinstance(error, subprocess.TimeoutExpired):
            raise NotMade(f"it took longer than {SECONDS} seconds: plan fewer bases, accelerators or classes") from None
        raise
    finally:
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    return process.returncode, stdout, stderr


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files into a folder of one's own."""
    for name, content in files.items():
        (folder / name).write_text(content)


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no JSON, and the database keeps none")


def _last_words(stderr: bytes, code: int, folder: Path) -> str:
    text = stderr[-4000:].decode(errors="replace").strip()
    if "No module named" in text:
        return "planning is not installed beside the worker: install the extra `capacity` (docs/capacity.md)"
    if "MemoryError" in text or code == -signal.SIGKILL:
        return f"it needed more than {_MEMORY_BYTES >> 30} GiB of memory: plan fewer bases, accelerators or classes"
    if code == -signal.SIGXCPU:
        return f"it took longer than {_CPU_SECONDS} seconds of a processor: plan fewer bases, accelerators or classes"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1].replace(f"{folder}/", "") if lines else f"the command ended with {code}")[:2000]
