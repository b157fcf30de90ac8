"""The sandbox of the verifying child: every way out works without it and fails in it; what it lacks it says."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from serving.platform.confinement.landlock import landlock_version
from serving.platform.verify_process import probe_confinement, start_child
from tests.serving.platform.escapes import ESCAPED, ESCAPES, Targets

VICTIM = """
import ctypes, sys
secret = ctypes.create_string_buffer(b"root key in memory")
print(ctypes.addressof(secret), flush=True)
sys.stdin.read()
"""
# Escapes that many systems refuse by themselves: to ordinary users, in containers, or by a setting such as Yama's.
SYSTEM_MAY_REFUSE = {
    "attach a debugger",
    "become root",
    "enter namespaces",
    "handle page faults",
    "keep a key in the kernel",
    "leave the root folder",
    "load a program into the kernel",
    "make memory executable",
    "mount",
    "raise a limit",
    "read the parent's memory by a call",
    "read the parent's memory through /proc",
    "take the parent's descriptor",
    "use io_uring",
    "use shared memory",
}
# Escapes that only the list of allowed calls stops; each of the others has a second barrier.
SECCOMP_ALONE = {"be dumpable again", "keep a key in the kernel", "make memory executable", "use shared memory"}


@dataclass(frozen=True)
class Run:
    """The report of one run of `escapes`, and the system's view of that process while it was confined."""

    outcomes: dict[str, str]
    missing: list[str]
    descriptors: list[int]
    environment: dict[str, str]
    status: dict[str, str]
    network: str | None


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Targets]:
    folder = tmp_path_factory.mktemp("targets")
    (folder / "root.key").write_bytes(b"root key")
    (folder / "root.key").chmod(0o600)
    with (
        subprocess.Popen([sys.executable, "-c", VICTIM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as victim,
        socket.create_server(("127.0.0.1", 0), backlog=100) as vault,
        contextlib.chdir(folder),  # the path of a unix socket is short
        socket.socket(socket.AF_UNIX) as local,
    ):
        local.bind("socket")
        local.listen(100)
        assert victim.stdout is not None and victim.stdin is not None
        address = int(victim.stdout.readline())
        path = os.path.relpath(folder / "socket", Path(__file__).parents[3])
        yield Targets(victim.pid, address, vault.getsockname()[1], path, str(folder / "root.key"), str(folder))
        victim.stdin.close()


def _run(mode: str, targets: Targets) -> Run:
    with start_child("tests.serving.platform.escapes", mode) as child:
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        child.stdin.write(json.dumps(asdict(targets)).encode() + b"\n")
        child.stdin.flush()
        line = child.stdout.readline()
        status = dict(row.split(":\t", 1) for row in Path(f"/proc/{child.pid}/status").read_text().splitlines())
        network = None
        with contextlib.suppress(OSError):  # for root's eyes alone
            network = os.readlink(f"/proc/{child.pid}/ns/net")
        _, errors = child.communicate(b"\n", timeout=60)
    assert child.returncode == 0 and line, errors.decode()
    return Run(**json.loads(line), status=status, network=network)


@pytest.fixture(scope="module")
def free(targets: Targets) -> Run:
    return _run("free", targets)


@pytest.fixture(scope="module")
def confined(targets: Targets) -> Iterator[Run]:
    leak = os.open(targets.key, os.O_RDONLY)
    os.set_inheritable(leak, True)
    os.environ["ESCAPE_SECRET"] = "root key in the environment"
    try:
        yield _run("confined", targets)
    finally:
        del os.environ["ESCAPE_SECRET"]
        os.close(leak)


@pytest.fixture(scope="module")
def in_container(targets: Targets) -> Run:
    return _run("container", targets)


@pytest.fixture(scope="module")
def without_seccomp(targets: Targets) -> Run:
    return _run("no-seccomp", targets)


@pytest.mark.parametrize("name", ESCAPES)
def test_an_escape_works_outside_the_sandbox_and_fails_inside(free: Run, confined: Run, name: str) -> None:
    assert free.outcomes[name] == ESCAPED or name in SYSTEM_MAY_REFUSE
    # A system that lacks a layer says so, and then another test tells which escapes are left.
    assert confined.outcomes[name] != ESCAPED or confined.missing


def test_a_container_that_refuses_namespaces_and_landlock_still_lets_nothing_out(in_container: Run) -> None:
    reported = {layer.split(" (")[0] for layer in in_container.missing}
    assert {"namespaces", "Landlock"} <= reported
    assert "seccomp" in reported or ESCAPED not in in_container.outcomes.values()


def test_without_seccomp_the_other_layers_stop_all_that_touches_files_networks_and_processes(
    without_seccomp: Run, confined: Run
) -> None:
    assert [layer.split(" (")[0] for layer in without_seccomp.missing][-1] == "seccomp"
    escaped = {name for name, outcome in without_seccomp.outcomes.items() if outcome == ESCAPED}
    assert escaped <= SECCOMP_ALONE or confined.missing


def test_the_child_inherits_neither_descriptors_nor_environment(confined: Run) -> None:
    assert confined.descriptors == [0, 1, 2]
    assert set(confined.environment) <= {"PYTHONPATH", "PATH", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "LC_CTYPE"}


def test_the_system_confirms_every_layer_that_is_not_reported_missing(confined: Run) -> None:
    reported = {layer.split(" (")[0] for layer in confined.missing}
    assert (confined.status["Seccomp"] == "2") == ("seccomp" not in reported)
    assert (confined.status["NoNewPrivs"] == "1") == ("no new privileges" not in reported)
    if "no capabilities" not in reported:
        assert {int(confined.status[kind], 16) for kind in ("CapEff", "CapPrm", "CapInh")} == {0}
    if "an account of its own" not in reported:
        assert "0" not in confined.status["Uid"].split()
    if confined.network is not None and "namespaces" not in reported:
        assert confined.network != os.readlink("/proc/self/ns/net")
    try:
        landlock_version()
        has_landlock = True
    except OSError:
        has_landlock = False
    assert has_landlock or "Landlock" in reported


def test_a_probe_finds_the_layers_that_are_missing_here(confined: Run) -> None:
    assert probe_confinement() == confined.missing
