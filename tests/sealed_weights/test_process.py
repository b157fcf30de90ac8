"""A process that was made private refuses core files and readers of its memory."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from devstack.state import REPOSITORY
from sealed_weights.process import is_dumpable

# A number that is in no source file: only a process that computed it can have it in memory.
SECRET = "secret = b''.join(b'%08d' % (n * n) for n in range(9000, 9100))"
STATE = """
import resource
from sealed_weights.process import is_dumpable
print(resource.getrlimit(resource.RLIMIT_CORE), is_dumpable(), flush=True)
"""
PRIVATE = "(0, 0) False"


def run(script: str, folder: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def test_a_process_is_not_private_by_itself_and_its_forked_children_are() -> None:
    forked = """
import os
from sealed_weights.process import is_dumpable, keep_memory_private
assert is_dumpable()
keep_memory_private()
keep_memory_private()
if os.fork() == 0:
    os._exit(7 if is_dumpable() else 0)
assert os.wait()[1] == 0
"""
    done = run(forked + STATE)
    assert (done.returncode, done.stdout.strip()) == (0, PRIVATE), done.stderr


@pytest.mark.parametrize("private", [False, True])
def test_a_crash_with_core_files_enabled_leaves_no_core_of_a_private_process(tmp_path: Path, private: bool) -> None:
    script = f"""
import os, resource, signal
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
{"from sealed_weights.process import keep_memory_private; keep_memory_private()" if private else ""}
{SECRET}
os.kill(os.getpid(), signal.SIGSEGV)
"""
    done = run(script, tmp_path)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    cores = list(tmp_path.iterdir())
    if private:
        assert cores == []
    else:
        # Where the system writes cores into the working folder, the unprotected process leaves its secret there.
        secret = b"".join(b"%08d" % (n * n) for n in range(9000, 9100))
        assert all(secret in core.read_bytes() for core in cores)


# As root it becomes an ordinary user first, because root may read everything.
READER = """
import ctypes, os
from sealed_weights.process import keep_memory_private
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # the change of user has made it private already
if PRIVATE:
    keep_memory_private()
victim = os.getpid()
if os.fork() == 0:
    for name in ("environ", "maps", "mem"):
        try:
            with open(f"/proc/{victim}/{name}", "rb") as file:
                file.read(0 if name == "mem" else 1)
            print("read", end=" ")
        except PermissionError:
            print("refused", end=" ")
    print(flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize("private", [False, True])
def test_another_process_of_the_same_user_reads_neither_memory_nor_environment(private: bool) -> None:
    done = run(f"PRIVATE = {private}\n{READER}")
    seen = done.stdout.split()
    assert len(seen) == 3, done.stderr
    if private:
        assert seen == ["refused"] * 3
    else:
        # Yama may refuse the memory of every process that is no child; the environment is readable all the same.
        assert seen[0] == "read"


def test_is_dumpable_agrees_with_the_system() -> None:
    assert is_dumpable() == (ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) != 0)
