"""A platform for the benchmark, as devstack runs it: durable PostgreSQL, Valkey, the stub replica, gateway processes.

CPU time is read from /proc, by role.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.gateway.replica import BASE
from devstack.postgres import PostgresServer, prepare_postgres, remove_postgres
from devstack.state import REPOSITORY, free_port
from devstack.supervisor import die_with_parent
from devstack.valkey import prepare_valkey

MODEL, FLAT_MODEL = "maker/thing", "maker/flat"
FLAT_NANO_USD = 1_000  # of a prediction of FLAT_MODEL, whatever its tokens: what is held is what is charged
READY_SECONDS = 120.0
RATE_LIMIT = 100_000  # per second: not what is measured
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Platform:
    """Everything that runs. `gateways` are ports, `keys` the API keys of wallets with much credit."""

    root: Path
    environment: dict[str, str]
    postgres: PostgresServer
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    gateways: list[int] = field(default_factory=list)
    replica_port: int = 0
    keys: list[str] = field(default_factory=list)
    poor: str = ""

    def start(
        self, name: str, command: list[str], ready: Callable[[], bool], **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a process that dies with this one, and wait until it is ready. Raises RuntimeError with its log."""
        log = self.root / f"{name}.log"
        stop = signal.SIGQUIT if name == "postgres" else signal.SIGKILL
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, preexec_fn=die_with_parent(stop), **options
            )
        self.processes[name] = process
        deadline = time.monotonic() + READY_SECONDS
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.02)
        return process

    def python(
        self, name: str, module: list[str], ready: Callable[[], bool], **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a Python module in the platform's environment."""
        environment = {**self.environment, "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-m", *module]
        return self.start(name, command, ready, env=environment, cwd=REPOSITORY, **options)

    def add_gateway(self) -> int:
        """Start one more gateway process; return its port."""
        port = free_port()
        options = ["--lifespan=on", "--http=protocol.http1:EdgeProtocol", "--no-access-log", "--log-level=warning"]
        module = ["uvicorn", "marketplace.config.asgi:application", "--host=127.0.0.1", f"--port={port}", *options]
        self.python(f"gateway-{len(self.gateways)}", module, lambda: answers(f"http://127.0.0.1:{port}/healthz"))
        self.gateways.append(port)
        return port

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time so far of PostgreSQL, Valkey, the replica and all gateways, with their processes."""
        seconds: dict[str, float] = {}
        for name, process in self.processes.items():
            role = name.partition("-")[0]
            seconds[role] = seconds.get(role, 0.0) + cpu_of_tree(process.pid)
        return seconds

    def query(self, sql: str) -> Any:
        """Return the first row of a query, as the administrator."""
        with psycopg.connect(self.postgres.admin_url("intarsia"), autocommit=True) as connection:
            return connection.execute(sql).fetchone()

    def stop(self, name: str, how: int = signal.SIGTERM) -> None:
        """Stop one process and wait for its end."""
        process = self.processes.pop(name)
        process.send_signal(how)
        process.wait(30)


def cpu_of_tree(pid: int) -> float:
    """Return user and system seconds of a process and its descendants, those that have ended included."""
    total, todo = 0.0, [pid]
    while todo:
        one = todo.pop()
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(value) for value in fields[11:15]) / _TICKS
            todo += [int(child) for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
    return total


def answers(url: str) -> bool:
    """Return whether a GET is answered with 200 within a second."""
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def fdatasync_ms(folder: Path, times: int = 200) -> float:
    """Return the median milliseconds in which a page written to a file of `folder` reaches the disk."""
    path = folder / "fdatasync"
    page = secrets.token_bytes(8192)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.write(file, page * 64)
        os.fsync(file)
        taken = []
        for number in range(times):
            os.pwrite(file, page, 8192 * (number % 64))
            start = time.perf_counter()
            os.fdatasync(file)
            taken.append((time.perf_counter() - start) * 1e3)
    finally:
        os.close(file)
        path.unlink()
    return statistics.median(taken)


@contextlib.contextmanager
def platform(*, gateways: int, wallets: int, affordable: int) -> Iterator[Platform]:
    """Start a platform in a temporary folder, with so many gateway processes and wallets; remove it in the end."""
    root = Path(tempfile.mkdtemp(prefix="intarsia-benchmark-"))
    root.chmod(0o755)  # PostgreSQL runs as another account when we are root
    database = prepare_postgres(root, instance=root.name, port=free_port(), password="b", application_password="a")
    running = Platform(root, {}, database)
    try:
        _start_all(running, gateways=gateways, wallets=wallets, affordable=affordable)
        yield running
    finally:
        for name in reversed(list(running.processes)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.stop(name, signal.SIGINT if name == "postgres" else signal.SIGTERM)
        remove_postgres(root.name)
        shutil.rmtree(root, ignore_errors=True)


def _start_all(running: Platform, *, gateways: int, wallets: int, affordable: int) -> None:
    database, root = running.postgres, running.root
    account = database.account.popen_arguments()
    running.start("postgres", database.command(), database.is_ready, cwd="/", **account)
    valkey = prepare_valkey(root, port=free_port(), password="benchmark")
    running.start("valkey", valkey.command(), valkey.is_ready)
    with psycopg.connect(database.admin_url("postgres"), autocommit=True) as connection:
        connection.execute("CREATE DATABASE intarsia")
    running.environment = {
        "PATH": os.environ["PATH"],
        "DJANGO_SETTINGS_MODULE": "marketplace.config.settings",
        "DATABASE_URL": database.url("intarsia"),
        "VALKEY_URL": valkey.url(),
        "SECRET_KEY": secrets.token_hex(32),
        "API_KEY_PEPPER": secrets.token_hex(32),
        "ROOT_KEY_FILE": str(root / "root.key"),
        "BLOB_DIR": str(root / "blobs"),
        "PUBLIC_URL": "http://localhost",
        "EMAIL_URL": "smtp://localhost:9",
        "STRIPE_API_KEY": "sk_test_benchmark",
        "STRIPE_API_BASE": "http://127.0.0.1:9",
        "STRIPE_WEBHOOK_SECRET": "whsec_benchmark",
        "RATE_LIMIT": str(RATE_LIMIT),
        "LOG_LEVEL": "WARNING",
        **{name: os.environ[name] for name in ("HOME", "LD_LIBRARY_PATH") if name in os.environ},
    }
    key = Ed25519PrivateKey.generate()
    running.replica_port = free_port()
    stub = running.python(
        "replica", ["benchmarks.gateway.replica", str(running.replica_port)], lambda: True, stdin=subprocess.PIPE
    )
    assert stub.stdin is not None
    stub.stdin.write(key.private_bytes_raw().hex().encode() + b"\n")
    stub.stdin.close()
    administration = running.environment | {"DATABASE_ADMIN_URL": database.admin_url("intarsia")}
    run([sys.executable, "manage.py", "migrate", "--verbosity=0"], administration)
    order = {
        "wallets": wallets,
        "affordable": affordable,
        "url": f"http://127.0.0.1:{running.replica_port}",
        "public_key": key.public_key().public_bytes_raw().hex(),
        "base": BASE,
    }
    seeded = json.loads(run([sys.executable, "-m", "benchmarks.gateway.seed"], running.environment, json.dumps(order)))
    running.keys, running.poor = seeded["keys"], seeded["poor"]
    for _ in range(gateways):
        running.add_gateway()


def run(command: list[str], environment: dict[str, str], given: str = "") -> str:
    """Run a command of the platform to its end and return what it printed. Raises RuntimeError with its errors."""
    done = subprocess.run(
        command, env=environment, cwd=REPOSITORY, input=given, capture_output=True, text=True, timeout=300
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[1:]} failed:\n{done.stderr[-3000:]}")
    return done.stdout
