"""The head of Ray is killed with everything on it, and comes back after a while, its state in a Valkey of its own.

Not collected with the suite: it runs in a network namespace of its own, for `ray start` listens on all interfaces.

    unshare --map-current-user --keep-caps --net sh -c \
        'ip link set lo up && exec .venv/bin/python -m pytest -q -s -n 0 tests/together/long_head_lost.py'

Root leaves the two options before `--net` out. INTARSIA_HEAD_AWAY is for how many seconds the head is away.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from devstack.state import REPOSITORY, free_port
from devstack.supervisor import die_with_parent
from devstack.valkey import prepare_valkey
from marketplace.catalog.services import read_base_folder, register_reference
from marketplace.vault.fleets import issue_fleet_credential
from marketplace.vault.identities import Terms
from protocol.checkpoints import ComputedIn
from tests.together.fleet_process import Callers, living, pid_of, tiny_pool, wait_for
from tests.together.tiny import Tiny

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]
AWAY_SECONDS = float(os.environ.get("INTARSIA_HEAD_AWAY", "30"))
PASSWORD = "a" * 64
STARTED = "Ray runtime started"


class Node:
    """`python -m serving.fleet.node` in a session of its own."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self._folder, self._name, self._arguments = folder, name, arguments
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "serving.fleet.node", "--address", "127.0.0.1", *self._arguments]
        with (self._folder / f"{self._name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log, preexec_fn=die_with_parent(15)
            )

    def log(self) -> str:
        return (self._folder / f"{self._name}.log").read_text(errors="replace")[-12_000:]

    def kill(self) -> None:
        """End the node and all that runs on it, as a machine that loses its power."""
        assert self.process is not None
        for pid in reversed(descendants(self.process.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def descendants(pid: int) -> list[int]:
    """Return a process and all that it started."""
    found = [pid]
    for one in found:
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found


@contextmanager
def state_of_the_head(folder: Path) -> Iterator[str]:
    """Run a Valkey; yields its address."""
    (folder / "gcs").mkdir()
    server = prepare_valkey(folder / "gcs", port=free_port(), password=PASSWORD)
    process = subprocess.Popen(server.command(), stdout=subprocess.DEVNULL, preexec_fn=die_with_parent(15))
    try:
        wait_for(server.is_ready, 20, "Valkey", str)
        yield f"127.0.0.1:{server.port}"
    finally:
        process.terminate()
        process.wait()


def test_streams_go_on_while_the_head_is_away(platform_url: str, tiny: Tiny, tmp_path: Path) -> None:
    computed = ComputedIn.of_flags(dtype="float32", kv_dtype="auto", adapter_dtype="auto")
    base = register_reference(name="tiny", folder=read_base_folder(tiny.model, computed))
    credential = issue_fleet_credential(pool="small", terms=Terms(base, "127.0.0.0/8"), replicas=4)
    (tmp_path / "credential-small").write_text(credential)
    pool = tiny_pool("small", tiny.model, tmp_path, platform_url, min_replicas=2, max_replicas=2)
    application = {"name": "small", "route_prefix": None, "import_path": "serving.fleet.app:build", "args": pool}
    (tmp_path / "serve.yaml").write_text(yaml.safe_dump({"proxy_location": "Disabled", "applications": [application]}))
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text(PASSWORD)
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token"),
    }
    head = Node(tmp_path, "head", "--head", "--applications", str(tmp_path / "serve.yaml"))
    node = Node(tmp_path, "node", "--join", "127.0.0.1:6379", "--num-cpus", "3", "--state-dir", pool["state_dir"])
    with state_of_the_head(tmp_path) as valkey:
        lasting = environment | {"RAY_REDIS_ADDRESS": valkey, "RAY_external_storage_namespace": "small"}
        head.start(lasting)
        try:
            wait_for(lambda: STARTED in head.log(), 60, "a head", head.log)  # or a node gives up
            node.start(environment)
            wait_for(lambda: len(living("small")) == 2, 120, "two replicas", lambda: head.log() + node.log())
            before = {one.pk for one in living("small")}
            with Callers("small", threads=4) as callers:
                wait_for(lambda: callers.answered > 3, 20, "calls", node.log)
                head.kill()
                gone = callers.answered
                time.sleep(AWAY_SECONDS)
                meanwhile = callers.answered - gone
                head.start(lasting)
                wait_for(lambda: head.log().count(STARTED) == 2, 60, "the head again", head.log)
                victim = living("small")[0]
                time.sleep(20)  # what a new head does wrongly, it does at once
                replaced_by_return = len(before - {one.pk for one in living("small")})
                answered = callers.answered
            before = {one.pk for one in living("small")}
            os.kill(pid_of(victim), signal.SIGKILL)
            killed = time.monotonic()
            wait_for(
                lambda: len(living("small")) == 2 and {one.pk for one in living("small")} != before,
                60,
                "a successor under the new head",
                lambda: head.log() + node.log(),
            )
            replaced = time.monotonic() - killed
        finally:
            node.kill()
            head.kill()
    figures = {
        "head_away_s": AWAY_SECONDS,
        "answered": answered,
        "answered_while_away": meanwhile,
        "failed": len(callers.failures),
        "replaced_by_its_return": replaced_by_return,
        "replaced_by_the_new_head_s": round(replaced, 1),
    }
    print(json.dumps(figures))
    assert callers.failures == [] and meanwhile > 0
    assert replaced_by_return == 0
