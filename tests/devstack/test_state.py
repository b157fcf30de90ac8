"""The state folder: secrets, locks, ports, and the servers' data folders."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from devstack import state as state_module
from devstack.errors import LocalStackError
from devstack.lock import StackLock, is_running, read_stack
from devstack.postgres import PostgresServer, prepare_postgres, remove_postgres
from devstack.samples import sample_credentials
from devstack.state import SECRET_NAMES, State, free_port, port_is_free
from devstack.supervisor import die_with_parent
from devstack.unprivileged import can_enter, server_account
from devstack.valkey import prepare_valkey


def prepare(root: Path, instance: str, port: int, password: str) -> PostgresServer:
    return prepare_postgres(root, instance=instance, port=port, password=password, application_password="app")


def test_secrets_are_generated_once_and_readable_by_the_owner_alone(tmp_path: Path) -> None:
    first = State.open(tmp_path / "s")
    again = State.open(tmp_path / "s")
    assert first.secrets == again.secrets and set(first.secrets) == set(SECRET_NAMES)
    assert (tmp_path / "s" / "secrets.json").stat().st_mode & 0o777 == 0o600
    assert sample_credentials(first).stat().st_mode & 0o777 == 0o600


def test_two_state_folders_share_no_secret(tmp_path: Path) -> None:
    one, other = State.open(tmp_path / "a"), State.open(tmp_path / "b")
    assert not set(one.secrets.values()) & set(other.secrets.values())


def test_secrets_of_an_older_version_are_completed_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "secrets.json").write_text(json.dumps({"secret_key": "kept" * 10}))
    assert State.open(tmp_path).secrets["secret_key"] == "kept" * 10


def test_damaged_secrets_are_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "secrets.json").write_text("{half")
    with pytest.raises(LocalStackError, match="make clean"):
        State.open(tmp_path)


def test_several_processes_may_open_a_fresh_folder_at_once_and_share_its_secrets(tmp_path: Path) -> None:
    """As `make --jobs=3 tools browser triton` does on a fresh clone."""
    with ThreadPoolExecutor(8) as pool:
        for attempt in range(20):
            root = tmp_path / str(attempt)
            opened = list(pool.map(State.open, [root] * 8))
            assert all(state.secrets == opened[0].secrets for state in opened)
            assert json.loads((root / "secrets.json").read_text()) == opened[0].secrets


def test_a_full_disk_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(state_module.shutil, "disk_usage", lambda path: usage._replace(free=10 * 2**20))
    with pytest.raises(LocalStackError, match=r"(?s)0\.0 GiB free .* INTARSIA_HOME"):
        State.open(tmp_path)


def test_an_unwritable_folder_is_a_clear_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(LocalStackError, match="cannot write to the state folder"):
        State.open(blocked / "state")


def test_a_second_stack_is_refused_and_a_crashed_one_leaves_no_stale_lock(tmp_path: Path) -> None:
    state = State.open(tmp_path)
    code = (
        "import sys,time\nfrom pathlib import Path\nfrom devstack.lock import StackLock\n"
        "from devstack.state import State\n"
        "lock = StackLock(State.open(Path(sys.argv[1])))\n"
        "lock.publish({'url': 'http://127.0.0.1:1', 'pid': 7})\nprint('held', flush=True)\ntime.sleep(600)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    assert is_running(state) and read_stack(state) == {"url": "http://127.0.0.1:1", "pid": 7}
    with pytest.raises(LocalStackError, match=r"already running at http://127\.0\.0\.1:1 \(pid 7\)"):
        StackLock(state)
    holder.kill()
    holder.wait()
    assert not is_running(state)
    lock = StackLock(state)
    assert read_stack(state) is None, "what the crashed one published must not be believed"
    lock.release()


def test_a_taken_port_is_noticed() -> None:
    port = free_port()
    assert port_is_free(port)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert not port_is_free(port)


@pytest.fixture
def reachable_folder() -> Iterator[Path]:
    """A folder that an unprivileged account can enter (pytest's own are closed to others)."""
    with tempfile.TemporaryDirectory(prefix="intarsia-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_postgres_starts_over_a_stale_pid_file_and_an_interrupted_initdb(reachable_folder: Path) -> None:
    instance = f"test-{os.getpid()}"
    try:
        server = prepare_postgres(
            reachable_folder, instance=instance, port=free_port(), password="one", application_password="app"
        )
        (server.data / "intarsia-ready").unlink()  # as if initdb had been interrupted
        server = prepare_postgres(
            reachable_folder, instance=instance, port=free_port(), password="two/:@", application_password="app"
        )
        stale = server.data / "postmaster.pid"
        stale.write_text(f"{os.getpid()}\n{server.data}\n")  # a live process that is not PostgreSQL
        server = prepare_postgres(
            reachable_folder, instance=instance, port=server.port, password="two/:@", application_password="app"
        )
        assert not stale.exists()
        process = subprocess.Popen(
            server.command(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            preexec_fn=die_with_parent(9),
            **server.account.popen_arguments(),
        )  # type: ignore[call-overload]
        deadline = time.monotonic() + 60
        while not server.is_ready():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        import psycopg

        with psycopg.connect(server.admin_url("postgres")) as connection:
            assert connection.execute("SHOW fsync").fetchone() == ("on",)
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.admin_url("postgres").replace("two", "wrong"))
        process.terminate()
        process.wait(60)
    finally:
        remove_postgres(instance)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another account")
def test_as_root_the_permissions_of_unreachable_parents_are_left_alone(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    root = closed / "state"
    root.mkdir()
    instance = f"test-closed-{os.getpid()}"
    assert not can_enter(server_account(), root)
    try:
        server = prepare(root, instance, free_port(), "x")
        assert closed.stat().st_mode & 0o777 == 0o700
        assert not server.data.is_relative_to(root)
        assert can_enter(server_account(), server.data)
    finally:
        remove_postgres(instance)


def test_valkey_keeps_its_password_out_of_the_process_list_and_appends(tmp_path: Path) -> None:
    server = prepare_valkey(tmp_path, port=free_port(), password="hidden-word")
    assert "hidden-word" not in " ".join(server.command())
    assert server.configuration.stat().st_mode & 0o777 == 0o600
    assert "appendonly yes" in server.configuration.read_text()
