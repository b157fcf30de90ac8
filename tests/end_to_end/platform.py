"""The real platform for tests: every process, real weights, the sample models pushed with the CLI."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devstack.demo.platform_client import PlatformClient
from devstack.lock import read_stack
from devstack.postgres import remove_postgres
from devstack.state import REPOSITORY, State
from devstack.supervisor import die_with_parent

# A fresh machine compiles the CPU kernels first, which takes minutes while other tests keep both cores busy.
START_SECONDS = 540
# Evaluations wait for customers, and here for whatever else the machine does: another platform that starts, browsers.
MEASURE_SECONDS = 540
_MARKS = {
    "web": "marketplace.config.asgi",
    "serving": "-m serving",
    "worker": "celery -A marketplace.config.celery worker --concurrency",
    "runs": "celery -A marketplace.config.celery worker --queues=runs",
    "jobs": "celery -A marketplace.config.celery worker --queues=jobs",
    "beat": "celery -A marketplace.config.celery beat",
    "stripe-double": "devstack.stripe_double",
    "valkey": "valkey-server",
    "postgres": "/postgres -D",
}


@dataclass
class Platform:
    """A running stack and a funded consumer."""

    state: State
    process: subprocess.Popen[str]
    info: dict[str, Any]
    account: PlatformClient
    operator: PlatformClient
    api_key: str

    @property
    def url(self) -> str:
        return str(self.info["url"])

    def pid_of(self, name: str) -> int:
        """Return the process id of a supervised process now (restarts change it), found by its command line.

        Raises LookupError between its death and its restart.
        """
        for child in _children(self.process.pid):
            try:
                command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if _MARKS[name] in command:
                return child
        raise LookupError(name)

    def manage(self, *arguments: str) -> str:
        """Run a management command on this platform; return its standard output."""
        done = _managed(self.state.root, *arguments)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


def _managed(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "devstack", "manage", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "INTARSIA_HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(part) for part in text.split()]


def _told(folder: Path) -> str:
    """Return the evaluations as the database has them, and the last lines of every log: why a start did not end."""
    fields = "'version__model__slug', 'state', 'reason', 'calls_done', 'created_at', 'started_at', 'claimed_until'"
    code = f"from marketplace.evals.models import EvalRun; [print(one) for one in EvalRun.objects.values({fields})]"
    asked = _managed(folder, "shell", "-c", code)
    logs = (f"--- {log.name}\n{log.read_text()[-1500:]}" for log in sorted(folder.rglob("*.log")))
    return "\n".join([asked.stdout, asked.stderr[-1500:], *logs])


@contextmanager
def running_platform(*, samples: bool = True, pay_at_once: bool = False) -> Iterator[Platform]:
    """Start a platform on free ports and in a folder of its own; stop it and delete everything afterwards.

    With `pay_at_once`, earnings wait no days in a reserve before they are paid out, as in the demonstration.
    """
    folder = Path(tempfile.mkdtemp(prefix="intarsia-e2e-"))
    folder.chmod(0o755)
    state = State.open(folder)
    base = State.open().base_model
    assert (base / "config.json").exists(), "the base model is missing; `make setup` converts it"
    environment = {**os.environ, "INTARSIA_HOME": str(folder), "BASE_MODEL": str(base), "OMP_NUM_THREADS": "2"}
    options = [*([] if samples else ["--no-samples"]), *(["--pay-at-once"] if pay_at_once else [])]
    log = (folder / "run.log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "devstack", "run", "--port", "0", *options],
        cwd=REPOSITORY,
        env=environment,
        stdout=log,
        stderr=log,
        text=True,
        preexec_fn=die_with_parent(signal.SIGTERM),
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while (info := read_stack(state)) is None:
            assert process.poll() is None and time.monotonic() < deadline, (folder / "run.log").read_text()
            time.sleep(0.1)
        account = PlatformClient(state, info["url"], "consumer", ["account"])
        account.top_up(1_000)
        operator = PlatformClient(state, info["url"], "staff", ["account"])
        # The platform measures its samples by itself: what a test counts should be its own.
        deadline = time.monotonic() + MEASURE_SECONDS
        while samples and sum(one["evaluation"] is not None for one in account.get("models")["results"]) < 3:
            assert time.monotonic() < deadline, f"the samples were not measured\n{_told(folder)}"
            time.sleep(0.5)
        yield Platform(state, process, info, account, operator, account.create_prediction_key())
    finally:
        children = _children(process.pid) if process.poll() is None else []
        process.terminate()
        process.wait(60)
        remove_postgres(json.loads((folder / "secrets.json").read_text())["instance"])
        shutil.rmtree(folder)
        assert not any(Path(f"/proc/{child}").exists() for child in children), "an orphan process was left behind"
