"""The stages of a run, in their order, each a program with a time limit of its own, whose process group ends with it.

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
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.gpu import records
from devstack.supervisor import die_with_parent

ROOT = Path(__file__).parents[2]
LAYERS, WITHOUT = "GPU_RUN_LAYERS", "GPU_RUN_WITHOUT"
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
# Seconds kept for the last summary and for ending a stage that ignores its request to end.
KEPT_BACK = 10.0
NOT_ON_CUDA = ("host_cases",)  # their launches do nothing
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
                records.RESULTS: str(results),
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


def _stage(name: str, group: str, share: float, *arguments: str, suspects: bool = False) -> Stage:
    return Stage(name, group, ("-m", "benchmarks.gpu.program", *arguments), share, suspects)


def _pytest(file: str) -> tuple[str, ...]:
    return ("pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "gpu", file)


def _case_programs() -> tuple[Stage, ...]:
    """Return a stage per program of cases of kernels, then of runners: each compares with plain torch."""
    return tuple(
        _stage(file.stem.replace("_", " "), "correctness", 2, f"tests.serving.{folder}.{file.stem}", suspects=True)
        for folder in ("kernels", "runner")
        for file in sorted((ROOT / "tests" / "serving" / folder).glob("*_cases.py"))
        if file.stem not in NOT_ON_CUDA and "__main__" in file.read_text("utf-8")
    )


STAGES = (
    *_case_programs(),
    _stage("LoRA kernels", "correctness", 3, *_pytest("tests/lora_kernels/test_triton_gpu.py"), suspects=True),
    _stage("the same numbers twice", "correctness", 1, "benchmarks.gpu.steady", suspects=True),
    # Last, and alone: what it does to streams and captures may leave a process unusable.
    _stage("loads that arrive while others serve", "correctness", 1, *_pytest("tests/lora_kernels/test_staging.py")),
    _stage("kernels of one layer", "figures", 3, "benchmarks.gpu.layer"),
    _stage("whole steps", "figures", 6, "benchmarks.gpu.steps"),
    _stage("attention beside its limit and SDPA", "figures", 2, "benchmarks.gpu.attention"),
    _stage("LoRA kernels beside peers", "figures", 3, "benchmarks.gpu.peers"),
    _stage("transformers and PEFT", "figures", 2, "benchmarks.gpu.peft"),
    _stage("launch sizes", "sweep", 4, "benchmarks.gpu.sweep"),
    _stage("kernels of one layer again", "sweep", 1, "benchmarks.gpu.layer"),
    _stage("DRAM throughput and issue slots", "profile", 3, "benchmarks.gpu.profile"),
)


def stages_of(groups: Collection[str]) -> tuple[Stage, ...]:
    """Return the stages of some groups, in the order of the run."""
    return tuple(stage for stage in STAGES if stage.group in groups)


def run_stages(
    stages: Sequence[Stage], out: Path, seconds: float, summarise: Callable[[Sequence[Outcome]], str]
) -> list[Outcome]:
    """Run every stage that there is time for. Writes stages.jsonl, log.txt, one file per group, and summary.md.

    A mechanism that had to be left out for right numbers, and layers that did not fit, stay out in later stages.
    """
    end = time.monotonic() + seconds - KEPT_BACK
    outcomes: list[Outcome] = []
    without, layers = "", ""
    for index, stage in enumerate(stages):
        print(f"\n== {stage.group}: {stage.name}", flush=True)
        results = out / f"{stage.group}.jsonl"
        outcome = run_stage(
            stage,
            results,
            lambda index=index: limit_of(stages, index, end - time.monotonic()),  # type: ignore[misc]
            without,
            layers,
        )
        outcomes.append(outcome)
        last = outcome.tries[-1]
        layers = last.layers or layers
        if last.status == "ok":
            without = last.without
        _write(outcome, out)
        records.bound(results)
        records.write_whole(out / "summary.md", summarise(outcomes))
        print(f"   {last.status} after {sum(one.seconds for one in outcome.tries):.0f} s  {outcome.note}", flush=True)
    return outcomes


def _write(outcome: Outcome, out: Path) -> None:
    stage = outcome.stage
    tries = [{key: value for key, value in asdict(one).items() if key != "output"} for one in outcome.tries]
    records.append(
        out / "stages.jsonl",
        {"stage": stage.name, "group": stage.group, "status": outcome.status, "note": outcome.note, "tries": tries},
    )
    log = out / "log.txt"
    with log.open("ab") as stream:
        for one in outcome.tries:
            stream.write(f"\n==== {stage.group}: {stage.name}: {one.status} {one.without} {one.layers}\n".encode())
            stream.write(one.output)
    records.bound(log)
