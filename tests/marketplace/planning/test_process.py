"""The process that makes plans: its limits, its silence about us, its own words."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from marketplace.planning import process
from marketplace.planning.errors import NotMade


def python(folder: Path, program: str) -> tuple[int, bytes, bytes]:
    return process._run([sys.executable, "-c", program], folder)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not happened():
        assert time.monotonic() < deadline, "a process did not start, or outlived its command"
        time.sleep(0.01)


def test_the_child_has_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTARSIA_MADE_UP_SECRET", "hush")
    _, stdout, _ = python(tmp_path, "import os, json; print(json.dumps(dict(os.environ)))")
    found = json.loads(stdout)
    assert found.keys() - {"LC_CTYPE"} == {"PATH", "HOME", "OMP_NUM_THREADS", "NO_COLOR"}
    assert found["HOME"] == str(tmp_path) and b"hush" not in stdout


def test_a_late_command_ends_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    communicate = subprocess.Popen.communicate

    def late(command: subprocess.Popen[bytes], *, timeout: float) -> tuple[bytes, bytes]:
        """Begin to count once all that is to be ended has started."""
        assert timeout == process.SECONDS
        until(lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2)
        return communicate(command, timeout=0.05)

    monkeypatch.setattr(subprocess.Popen, "communicate", late)
    program = (
        "import subprocess, sys, os\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open(os.environ['HOME'] + '/pids', 'w').write(f'{os.getpid()} {child.pid}')\n"
        "child.wait()"
    )
    with pytest.raises(NotMade, match="longer than"):
        python(tmp_path, program)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    until(lambda: not any(is_running(pid) for pid in pids))


def test_memory_is_limited(tmp_path: Path) -> None:
    code, _, stderr = python(tmp_path, f"bytearray({process._MEMORY_BYTES})")
    assert code == 1 and "GiB of memory" in process._last_words(stderr, code, tmp_path)


def test_the_commands_own_words_are_passed_on_without_our_folders(tmp_path: Path) -> None:
    names = ("usage.json", "prices.toml", "promises.toml")
    process.write_files(tmp_path, {name: "alpha = 1.5" for name in names})
    usage, prices, promises = (str(tmp_path / name) for name in names)
    with pytest.raises(NotMade) as refused:
        process.run_capacity(tmp_path, "plan", "--usage", usage, "--prices", prices, "--promises", promises)
    assert str(refused.value).startswith("error: step 1: usage.json is no usage file")


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "words"),
    [
        (0, b"no json", b"", "cannot be read"),
        (0, b"[]", b"", "cannot be read"),
        (0, b'{"a": NaN}', b"", "cannot be read"),
        (0, rb'{"a": "\u0000"}', b"", "cannot be read"),  # which PostgreSQL keeps in no JSON
        (0, b'"' + b"x" * (16 << 20) + b'"', b"", "too large"),
        (1, b"", b"Traceback\nModuleNotFoundError: No module named 'scipy'\n", "extra `capacity`"),
        (1, b"", b"Traceback\nValueError: odd\n", "ValueError: odd"),
        (-9, b"", b"", "GiB of memory"),
        (3, b"", b"", "ended with 3"),
    ],
)
def test_an_answer_that_is_none_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, stdout: bytes, stderr: bytes, words: str
) -> None:
    monkeypatch.setattr(process, "_run", lambda *_: (code, stdout, stderr))
    with pytest.raises(NotMade, match=words):
        process.run_capacity(tmp_path, "plan")


def test_a_review_that_did_not_hold_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_run", lambda *_: (1, b'{"held": false}', b""))
    assert process.run_capacity(tmp_path, "review") == {"held": False}
