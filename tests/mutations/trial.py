"""One copy of the working tree, in which faults are planted one after another and tests run."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from devstack.state import REPOSITORY
from tests.mutations import nearest
from tests.mutations.faults import Fault
from tests.tiers.run import SERVING

MOST_SECONDS = 1_800  # of one fault: tests that hang notice it too, each after TEST_SECONDS
TEST_SECONDS = 300
MOST_RED = 3  # tests that fail without the fault too
_NOTICED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a fault. by: the test that noticed; None: none did; error: why nothing can be said"""

    fault: Fault
    seconds: float
    by: str | None = None
    error: str | None = None

    @property
    def word(self) -> str:
        """Return the verdict in a word."""
        return "unclear" if self.error else "caught" if self.by else "SURVIVED"


class Copy:
    """A copy of the working tree in `folder`; its tests have a database and a cache of their own.

    near: run the tests alone that are nearest to a fault
    """

    def __init__(self, folder: Path, number: int, *, near: bool) -> None:
        self._folder = folder
        self._green: set[str] = set()  # tests that passed without a fault
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            source, target = REPOSITORY / name, folder / name
            if source.is_file() and not source.is_symlink():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        self._environment = os.environ | {
            nearest.ALONE: "1" if near else "",
            "PYTHONPATH": str(folder),
            "DATABASE_URL": _numbered(os.environ["DATABASE_URL"], f"intarsia_{number}"),
            "DATABASE_ADMIN_URL": _numbered(os.environ["DATABASE_ADMIN_URL"], f"intarsia_{number}"),
            "VALKEY_URL": _numbered(os.environ["VALKEY_URL"], str(number)),
        }

    def try_fault(self, fault: Fault) -> Verdict:
        """Plant a fault, run its tests, and take it out again. A test that notices must pass without it; one that does
        not is left out, and the others go on."""
        file = self._folder / fault.file
        right = file.read_text("utf-8")
        started = time.monotonic()
        if right.count(fault.old) != 1:
            return Verdict(fault, 0.0, error=f"its text is {right.count(fault.old)} times in {fault.file}")
        red: list[str] = []
        while len(red) <= MOST_RED:
            _write(file, right.replace(fault.old, fault.new))
            try:
                status, output = self._run(fault, [*fault.tests, *(f"--deselect={test}" for test in red)])
            finally:
                _write(file, right)
            seconds, noticed = time.monotonic() - started, _NOTICED.search(output)
            if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                return Verdict(fault, seconds)
            if status != pytest.ExitCode.TESTS_FAILED or noticed is None:
                return Verdict(fault, seconds, error=output[-2_000:])
            if noticed[1] in self._green or self._run(fault, [noticed[1]])[0] == pytest.ExitCode.OK:
                self._green.add(noticed[1])
                return Verdict(fault, seconds, noticed[1])
            red.append(noticed[1])
        return Verdict(fault, seconds, error=f"these fail without the fault too: {', '.join(red)}")

    def _run(self, fault: Fault, selection: Sequence[str]) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not deep", "-p", "tests.mutations.nearest"]
        command += [f"--timeout={TEST_SECONDS}", "-p", "no:cacheprovider", *selection]
        environment = self._environment | {nearest.FAULTY: fault.file}
        if all(test.startswith(tuple(SERVING)) for test in fault.tests):
            command += ["--without=django", "-p", "no:django"]
        try:
            done = subprocess.run(
                command, cwd=self._folder, env=environment, capture_output=True, text=True, timeout=MOST_SECONDS
            )
        except subprocess.TimeoutExpired:
            return -1, f"the tests did not end within {MOST_SECONDS} s"
        return done.returncode, done.stdout + done.stderr


def _numbered(url: str, last: str) -> str:
    return url.rpartition("/")[0] + "/" + last


def _write(file: Path, text: str) -> None:
    """Write a module, and drop what was compiled of it: a change of the same size in the same second goes unseen."""
    file.write_text(text, "utf-8")
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
