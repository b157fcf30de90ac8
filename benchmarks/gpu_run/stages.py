"""A stage: a program with a time limit of its own, whose whole process group ends with it.

A program appends JSON lines to the file named by $GPU_RUN_RESULTS and ends with 0, `OUT_OF_MEMORY` or `WRONG`; any
other status is a failure. $GPU_RUN_LAYERS and $GPU_RUN_WITHOUT say what a second try leaves out.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from devstack.supervisor import die_with_parent

ROOT = Path(__file__).parents[2]
RESULTS, LAYERS, WITHOUT = "GPU_RUN_RESULTS", "GPU_RUN_LAYERS", "GPU_RUN_WITHOUT"
SECONDS = "GPU_RUN_SECONDS"
OUT_OF_MEMORY, WRONG = 77, 78  # no status of pytest or of a shell
FEWER_LAYERS = "8"
# Parts that a second and a third try leave out after wrong or changing numbers, and how the summary calls it.
SUSPECTS = ("pdl", "pdl,graphs")
SPOKEN = {"": "with everything on", "pdl": "without programmatic launch", "pdl,graphs": "without graphs either"}
# Seconds between the request to end and the end by force.
GRACE = 5.0
# A stage with less time than this is not begun: importing torch alone takes a few seconds.
LEAST_SECONDS = 10.0
# A program that prints for ever ends by SIGXFSZ instead of filling the disk.
MOST_OUTPUT = 1 << 30
# Bytes of a program's output that the log keeps, of its beginning and of its end.
KEPT_OUTPUT = 48 << 10
MEMORY_MESSAGES = (b"OutOfMemoryError", b"out of memory", b"CUBLAS_STATUS_ALLOC_FAILED", b"MemoryError")


@dataclass(frozen=True)
class Stage:
    """A program, as arguments of this Python.

    group: which of the run's four parts it belongs to; names its file of results
    share: its part of the time that is left when it begins, relative to the shares of the stages after it
    suspects: whether wrong numbers lead to tries that leave out `SUSPECTS`
    """

    name: str
    group: str
    arguments: tuple[str, ...]
    share: float
    suspects: bool = False


@dataclass(frozen=True)
class Try:
    """One execution. status: "ok", "failed", "wrong", "out of memory", "package missing", "hung" or "not started"."""

    status: str
    seconds: float
    code: int | None = None
    without: str = ""
    layers: str = ""
    output: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Outcome:
    """All tries of a stage, the last of which counts."""

    stage: Stage
    tries: tuple[Try, ...]

    @property
    def status(self) -> str:
        """Return the status of the last try."""
        return self.tries[-1].status

    @property
    def note(self) -> str:
        """Return what helped, or that nothing did; empty for a stage that was right at once."""
        first, last = self.tries[0], self.tries[-1]
        notes = []
        if first.status in ("wrong", "failed") and len(self.tries) > 1:
            helped = last.status == "ok"
            notes.append(f"right {SPOKEN[last.without]}" if helped else f"{last.status} even {SPOKEN[last.without]}")
        if last.layers:
            notes.append(f"with {last.layers} layers, after running out of memory")
        if last.status == "hung":
            notes.append("ended by force at its limit")
        return "; ".join(notes)


def run_stage(stage: Stage, results: Path, seconds: Callable[[], float], without: str, layers: str) -> Outcome:
    """Run a stage, and again with less after a failure that less may mend. `seconds` gives each try's limit.

    `without` and `layers` are what earlier stages had to leave out.
    """
    tries: list[Try] = []
    leave_out = [step for step in SUSPECTS if len(step) > len(without)] if stage.suspects else []
    while True:
        tries.append(run_once(stage, results, seconds(), without, layers))
        status = tries[-1].status
        if status == "out of memory" and not layers:
            layers = FEWER_LAYERS
        elif status in ("wrong", "failed") and leave_out:
            without = leave_out.pop(0)
        else:
            break
    if tries[-1].status == "not started" and len(tries) > 1:
        tries.pop()  # the time for a second try was over: the first one counts
    return Outcome(stage, tuple(tries))


def run_once(stage: Stage, results: Path, seconds: float, without: str, layers: str) -> Try:
    """Run the program once, for at most `seconds` and the time that it takes to end it."""
    if seconds < LEAST_SECONDS:
        return Try("not started", 0.0, without=without, layers=layers)
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, *stage.arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=_limited(die_with_parent(signal.SIGKILL)),
            env={
                **os.environ,
                RESULTS: str(results),
                SECONDS: f"{seconds:.0f}",
                WITHOUT: without,
                LAYERS: layers,
                "PYTHONUNBUFFERED": "1",
            },
        )
        code = _wait_and_end(process, seconds)
        kept = _head_and_tail(output.fileno())
    return Try(_status(code, kept), time.monotonic() - began, code, without, layers, kept)


def _limited(inner: Callable[[], None]) -> Callable[[], None]:
    def prepare() -> None:
        inner()
        resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_OUTPUT, MOST_OUTPUT))

    return prepare


def _wait_and_end(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return the status, None where the limit came first. No process of the group is left either way."""
    code: int | None = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(seconds)
    if code is None:
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()
    return code


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _status(code: int | None, output: bytes) -> str:
    if code is None:
        return "hung"
    if code == 0:
        return "ok"
    # The kernel's own killer of processes sends SIGKILL, which no stage gets from here before its limit.
    if code in (OUT_OF_MEMORY, -signal.SIGKILL) or any(message in output for message in MEMORY_MESSAGES):
        return "out of memory"
    if b"No module named" in output:
        return "package missing"
    return "wrong" if code == WRONG else "failed"


def _head_and_tail(file: int) -> bytes:
    size = os.fstat(file).st_size
    head = os.pread(file, KEPT_OUTPUT, 0)
    if size <= 2 * KEPT_OUTPUT:
        return head + os.pread(file, KEPT_OUTPUT, len(head))
    left_out = size - 2 * KEPT_OUTPUT
    return head + b"\n[... %d bytes ...]\n" % left_out + os.pread(file, KEPT_OUTPUT, size - KEPT_OUTPUT)


def limit_of(stages: Sequence[Stage], index: int, left: float) -> float:
    """Return the seconds that stage `index` may take of the `left` ones: time that one saves goes to all after it."""
    return left * stages[index].share / sum(stage.share for stage in stages[index:])
