"""Start processes, watch them, restart the ones that die, stop them in order; never leave one behind.

One loop in one thread. Every child is started with a parent-death signal, so that even `kill -9` of the supervisor
takes the children with it, and in a session of its own, so that Ctrl-C reaches the supervisor alone and children are
stopped in order.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devstack.errors import LocalStackError

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(stop_signal: int) -> Callable[[], None]:
    """Make a preexec_fn: a new session, and `stop_signal` when the parent dies (Linux prctl(2)).

    Runs after the child's uid has changed, which would have cleared the setting.
    """
    parent = os.getpid()

    def prepare() -> None:
        os.setsid()
        _libc.prctl(_PR_SET_PDEATHSIG, stop_signal, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before prctl
            os.kill(os.getpid(), signal.SIGKILL)

    return prepare


def _reap(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit status if the process has ended, else None; the rest of its session is killed with it.

    The group is killed before the leader is reaped: until then its number cannot belong to another process.
    """
    if process.returncode is None:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


READY_SECONDS = 90.0


@dataclass
class ProcessSpec:
    """How to run one process, how to tell that it is ready, and how to stop it."""

    name: str
    command: list[str]
    environment: dict[str, str]
    ready: Callable[[], bool]
    stop_signal: int = signal.SIGTERM
    stop_seconds: float = 15.0
    ready_seconds: float = READY_SECONDS
    working_directory: str | None = None
    popen_arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Child:
    spec: ProcessSpec
    process: subprocess.Popen[bytes]
    started_at: float
    restarts: int = 0
    restart_at: float | None = None  # dead, waiting to be started again


class Supervisor:
    """Owns the children. `say(name, text)` hears of deaths, restarts and kills."""

    def __init__(self, logs: Path, say: Callable[[str, str], None]) -> None:
        self._logs = logs
        self._say = say
        self._children: dict[str, _Child] = {}

    def start(self, spec: ProcessSpec) -> None:
        """Start one process; does not wait. Raises LocalStackError if the program cannot be run at all."""
        self._children[spec.name] = _Child(spec, self._spawn(spec), time.monotonic())

    def _spawn(self, spec: ProcessSpec) -> subprocess.Popen[bytes]:
        log = os.open(self._logs / f"{spec.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            return subprocess.Popen(
                spec.command,
                env=spec.environment,
                cwd=spec.working_directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent(spec.stop_signal),
                **spec.popen_arguments,
            )
        except OSError as error:
            raise LocalStackError(f"cannot start {spec.name}: {error}") from error
        finally:
            os.close(log)

    def pid(self, name: str) -> int:
        """Return the process id of a child; a restart changes it."""
        return self._children[name].process.pid

    def pids(self) -> dict[str, int]:
        """Return the process ids of the children that are alive now."""
        return {name: child.process.pid for name, child in self._children.items() if child.process.poll() is None}

    def wait_ready(self, names: Iterable[str]) -> None:
        """Block until each named process is ready, restarting those that die meanwhile.

        Raises LocalStackError with the end of the log when one is not ready in its time or dies three times.
        """
        for name in names:
            child = self._children[name]
            deadline = time.monotonic() + child.spec.ready_seconds
            while not child.spec.ready():
                self.check()
                if time.monotonic() > deadline or child.restarts >= 3:
                    raise LocalStackError(
                        f"{name} did not get ready; the end of {self._logs / (name + '.log')}:\n{self.log_tail(name)}"
                    )
                time.sleep(0.05)

    def check(self) -> None:
        """Restart each process that has died: at once the first time, then after a growing pause (at most 10 s)."""
        now = time.monotonic()
        for name, child in self._children.items():
            code = _reap(child.process)
            if code is None:
                if child.restarts and now - child.started_at > 60:
                    child.restarts = 0
                continue
            if child.restart_at is None:
                pause = 0.0 if child.restarts == 0 else min(10.0, 0.5 * 2**child.restarts)
                child.restart_at = now + pause
                cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                self._say(name, f"stopped ({cause}); restarting" + (f" in {pause:.0f} s" if pause else ""))
            if now >= child.restart_at:
                child.process = self._spawn(child.spec)
                child.started_at = now
                child.restart_at = None
                child.restarts += 1

    def log_tail(self, name: str, lines: int = 15) -> str:
        """Return the last `lines` lines of a process's log."""
        try:
            text = (self._logs / f"{name}.log").read_text(errors="replace")
        except OSError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:])

    def stop(self) -> None:
        """Stop all, last started first; kill a process that does not end in its time. Safe to call twice."""
        for child in reversed(list(self._children.values())):
            if child.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(child.spec.stop_signal)
            deadline = time.monotonic() + child.spec.stop_seconds
            while _reap(child.process) is None:
                if time.monotonic() > deadline:
                    self._say(child.spec.name, "did not stop in time; killed")
                    os.killpg(child.process.pid, signal.SIGKILL)
                    child.process.wait()
                time.sleep(0.02)
        self._children.clear()
