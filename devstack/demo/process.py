"""The platform as a child process of the demonstration: started, watched, always stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from devstack.errors import LocalStackError
from devstack.lock import is_running, read_stack
from devstack.state import REPOSITORY, State
from devstack.supervisor import die_with_parent

START_SECONDS = 240
STOP_SECONDS = 60


@dataclass(frozen=True)
class RunningStack:
    """The addresses of the platform that this demonstration started."""

    url: str
    replica_url: str
    stripe_url: str


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def running_stack(state: State) -> Iterator[RunningStack]:
    """Start `run` on a free port, yield when it is ready, stop it. Raises LocalStackError when it cannot start."""
    if is_running(state):
        info = read_stack(state)
        where = f" at {info['url']}" if info else ""
        raise LocalStackError(f"the platform is already running{where}.\nStop it with `make stop`, then run the demo.")
    signal.signal(signal.SIGTERM, _interrupt)  # like Ctrl-C: the finally below must run
    process = subprocess.Popen(
        [sys.executable, "-m", "devstack", "run", "--port", "0", "--no-samples", "--pay-at-once"],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent(signal.SIGTERM),
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while (info := read_stack(state)) is None or info["pid"] != process.pid:
            if process.poll() is not None:
                raise LocalStackError(f"the platform stopped while starting (exit code {process.returncode}).")
            if time.monotonic() > deadline:
                raise LocalStackError(f"the platform did not start within {START_SECONDS} s.\nSee {state.logs}.")
            time.sleep(0.05)
        yield RunningStack(info["url"], info["replica_url"], info["stripe_url"])
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # its children die with it
            process.wait()
