"""`make test` and `make test-all`: lint, set-up and the two halves of the suite, side by side.

    python -m tests.tiers.run                 what `make test` runs
    python -m tests.tiers.run --deep [K/N]    the rest: all of it, or the Kth of N shards
    python -m tests.tiers.run --write         run all, and keep what it took as durations and budget

The platform's half imports no torch and the serving tier's no Django: each worker of the tests imports one of them.
What lint and the set-up print is shown when they have ended, so that it does not stand between the tests' lines.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from devstack.state import REPOSITORY
from tests.tiers import SERVICES, costs
from tests.triton_setup import NEWEST

SERVING = [
    *("tests/benchmarks", "tests/capacity", "tests/devstack", "tests/examples", "tests/lora_kernels"),
    *("tests/peft_bridge", "tests/protocol", "tests/routing", "tests/sealed_weights", "tests/serving", "tests/tiers"),
]
WORKERS = 2  # of each half: one of them may wait while both cores have work


@dataclass
class Part:
    """One process that runs beside others.

    live: its lines are shown as they come, not when it has ended
    """

    title: str
    command: Sequence[str]
    live: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    code: int | None = None
    seconds: float = 0.0
    _process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        started = time.monotonic()
        self._process = subprocess.Popen(
            self.command,
            cwd=REPOSITORY,
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert self._process.stdout
        kept = []
        for line in self._process.stdout:
            if self.live:
                print(f"{self.title:>8} | {line}", end="", flush=True)
            else:
                kept.append(line)
        self.code = self._process.wait()
        self.seconds = time.monotonic() - started
        if kept:
            print("".join(f"{self.title:>8} | {line}" for line in kept), end="", flush=True)

    def stop(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)


def _pytest(title: str, folders: Sequence[str], file: Path, *more: str) -> Part:
    parallel = ["-n", str(WORKERS), "--dist", "loadscope", "--no-loadscope-reorder"]
    command = [sys.executable, "-m", "pytest", *parallel, f"--costs={file}", *more, *folders]
    return Part(title, command, live=True)


def _beside() -> list[Part]:
    """Return lint, and the tools that few tests need: those wait for them, the others have begun."""
    python = sys.executable
    return [
        Part("browser", [python, "-m", "tests.browser"]),
        Part("triton", [python, "-m", "tests.triton_setup", NEWEST]),
        Part("kernels", [python, "-c", "from serving.kernels.library import load_library; load_library()"]),
        Part("lint", ["make", "--no-print-directory", "lint"]),
    ]


def _halves(shared: Path, selection: Sequence[str]) -> list[Part]:
    ignored = [f"--ignore={name}" for name in SERVING]
    platform = _pytest("platform", ["tests"], shared / "platform.json", "--without=torch", *ignored, *selection)
    serving = _pytest("serving", SERVING, shared / "serving.json", "--without=django", "-p", "no:django", *selection)
    # The folder is there already: no database starts for this half. One thread per worker: there is a worker per core.
    serving.environment = {SERVICES: str(shared), "OMP_NUM_THREADS": "1"}
    return [platform, serving]


def _run_together(parts: Sequence[Part]) -> None:
    threads = [threading.Thread(target=part.run) for part in parts]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        for part in parts:
            part.stop()
        for thread in threads:
            thread.join()
        raise


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests of one tier.")
    parser.add_argument("--deep", nargs="?", const="1/1", metavar="K/N", help="what `make test` leaves out, or a shard")
    parser.add_argument("--write", action="store_true", help="keep durations and, without --deep, the budget")
    arguments = parser.parse_args()
    selection = ["-m", "deep", f"--shard={arguments.deep}"] if arguments.deep else ["-m", "not deep"]
    beside = [] if arguments.deep else _beside()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="intarsia-tests-") as shared:
        halves = _halves(Path(shared), selection)
        try:
            _run_together([*halves, *beside])
        except KeyboardInterrupt:
            return 130
        over = _judge(sorted(Path(shared).glob("*.json")), deep=bool(arguments.deep), write=arguments.write)
    for part in (*halves, *beside):
        print(f"{part.title}: {'passed' if part.code == 0 else 'FAILED'} in {part.seconds:.0f} s")
    print(f"in all {time.monotonic() - started:.0f} s")
    return 1 if over or any(part.code != 0 for part in (*halves, *beside)) else 0


def _judge(files: Sequence[Path], *, deep: bool, write: bool) -> bool:
    command = [*map(str, files)]
    if write:
        command += ["--write", "durations" if deep else "budget"]
    elif not deep:
        command += ["--judge"]
    return bool(files) and costs.main(command) != 0


if __name__ == "__main__":
    sys.exit(main())
