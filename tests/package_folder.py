"""Packages for tests in a folder of their own, beside the environment: other versions, or what ours must not see."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from devstack.errors import LocalStackError
from devstack.state import State

INSTALL_SECONDS = 1200


class MissingToolError(LocalStackError):
    """A program or package that some tests need is neither here nor can it be installed: they are skipped."""


@contextmanager
def installing(name: str) -> Iterator[None]:
    """Let one process at a time install something. Raises MissingToolError for what went wrong."""
    with (State.open().root / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        except MissingToolError:
            raise
        except LocalStackError as error:
            raise MissingToolError(str(error)) from error


def install_folder(
    target: Path, title: str, arguments: Sequence[str], finish: Callable[[Path], object], note: str = ""
) -> None:
    """Install packages into `target`, whatever was there. An interruption leaves nothing behind.

    arguments: of `uv pip install`, beside the target: no dependencies are installed
    finish: called with the new folder before it takes its place
    note: shown behind the title while it takes its time

    Raises LocalStackError.
    """
    started = time.monotonic()
    print(f"  {title}{note} …", flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        made = Path(temporary) / target.name
        command = [sys.executable, "-m", "uv", "pip", "install", f"--python={sys.executable}", "--no-progress"]
        command += ["--no-deps", f"--target={made}", *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise LocalStackError(f"{title}: uv took more than {INSTALL_SECONDS} s") from error
        if done.returncode != 0:
            raise LocalStackError(f"{title}: uv failed\n{(done.stderr or done.stdout)[-2000:]}")
        finish(made)
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    print(f"  {title}: {time.monotonic() - started:.0f} s", flush=True)
