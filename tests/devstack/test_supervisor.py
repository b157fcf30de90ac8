"""Processes are restarted when they die, stopped in order, and never outlive the supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from devstack.errors import LocalStackError
from devstack.supervisor import ProcessSpec, Supervisor

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def spec(name: str, command: list[str] = SLEEP, **changes: object) -> ProcessSpec:
    return ProcessSpec(name=name, command=command, environment={}, ready=lambda: True, **changes)  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: object, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def said() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def supervisor(tmp_path: Path, said: list[tuple[str, str]]) -> object:
    made = Supervisor(tmp_path, lambda name, text: said.append((name, text)))
    yield made
    made.stop()


def test_a_killed_process_is_restarted_at_once(supervisor: Supervisor, said: list[tuple[str, str]]) -> None:
    supervisor.start(spec("a"))
    first = supervisor.pid("a")
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not alive(first))
    supervisor.check()
    assert supervisor.pid("a") != first and alive(supervisor.pid("a"))
    assert said == [("a", "stopped (signal SIGKILL); restarting")]


def test_children_of_a_killed_process_do_not_survive_its_restart(supervisor: Supervisor, tmp_path: Path) -> None:
    marker = tmp_path / "grandchild"
    code = (
        f"import subprocess, time\np = subprocess.Popen({SLEEP!r})\n"
        f"open({str(marker)!r}, 'w').write(str(p.pid))\ntime.sleep(600)"
    )
    supervisor.start(spec("a", [sys.executable, "-c", code]))
    wait_until(lambda: marker.exists() and marker.read_text())
    grandchild = int(marker.read_text())
    os.kill(supervisor.pid("a"), signal.SIGKILL)
    wait_until(lambda: not alive(supervisor.pid("a")))
    supervisor.check()
    wait_until(lambda: not alive(grandchild))


def test_stop_ends_everything_last_started_first(supervisor: Supervisor, tmp_path: Path) -> None:
    order = tmp_path / "order"
    code = (
        "import signal, sys, time\n"
        "signal.signal(15, lambda *a: (open({!r}, 'a').write({!r}), sys.exit()))\n"
        "print('up', flush=True)\ntime.sleep(600)"
    )
    for name in "abc":
        supervisor.start(spec(name, [sys.executable, "-c", code.format(str(order), name)]))
    wait_until(lambda: all("up" in supervisor.log_tail(name) for name in "abc"))
    pids = supervisor.pids()
    supervisor.stop()
    assert order.read_text() == "cba"
    assert not any(alive(pid) for pid in pids.values())


def test_a_process_that_ignores_the_stop_signal_is_killed(supervisor: Supervisor, said: list[tuple[str, str]]) -> None:
    code = "import signal,time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    supervisor.start(spec("deaf", [sys.executable, "-c", code], stop_seconds=0.3))
    wait_until(lambda: "up" in supervisor.log_tail("deaf"))
    pid = supervisor.pid("deaf")
    supervisor.stop()
    assert not alive(pid)
    assert ("deaf", "did not stop in time; killed") in said


def test_a_process_that_keeps_dying_is_reported_with_its_log(supervisor: Supervisor) -> None:
    supervisor.start(
        ProcessSpec(
            name="broken",
            command=[sys.executable, "-c", "raise SystemExit('no such model')"],
            environment={},
            ready=lambda: False,
        )
    )
    with pytest.raises(LocalStackError, match="no such model"):
        supervisor.wait_ready(["broken"])


def test_a_missing_program_is_a_clear_error(supervisor: Supervisor) -> None:
    with pytest.raises(LocalStackError, match="cannot start ghost"):
        supervisor.start(spec("ghost", ["/no/such/program"]))


def test_children_die_with_a_supervisor_killed_by_force(tmp_path: Path) -> None:
    code = (
        "import sys,time\nfrom pathlib import Path\n"
        "from devstack.supervisor import ProcessSpec, Supervisor\n"
        "s = Supervisor(Path(sys.argv[1]), lambda *a: None)\n"
        f"s.start(ProcessSpec(name='a', command={SLEEP!r}, environment={{}}, ready=lambda: True))\n"
        "print(s.pid('a'), flush=True)\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.kill()
    parent.wait()
    wait_until(lambda: not alive(child))
