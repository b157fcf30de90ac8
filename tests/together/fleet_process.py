"""`python -m serving.fleet` in a process of its own, against the platform's internal API: real Ray, tiny models."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
from django.db import connections

from devstack.memory_lock import can_lock
from devstack.state import REPOSITORY
from devstack.supervisor import die_with_parent
from marketplace.vault.models import Replica
from marketplace.vault.selectors import live_replicas
from marketplace.vault.signing import load_ticket_signer
from protocol.tickets import TICKET_HEADER, prediction_ticket
from serving.fleet.loopback import listeners

_Value = TypeVar("_Value")


def wait_for(find: Callable[[], _Value | bool | None], seconds: float, what: str, log: Callable[[], str]) -> Any:
    """Return what `find` finds; fails with the fleet's log when it takes too long."""
    deadline = time.monotonic() + seconds
    while not (found := find()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s\n{log()}"
        time.sleep(0.05)
    return found


@dataclass
class FleetProcess:
    """One head and the pools of `settings`, restartable on one folder of state."""

    folder: Path
    settings: list[dict[str, Any]]
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def pools_file(self) -> Path:
        return self.folder / "pools.json"

    @property
    def ready_file(self) -> Path:
        return self.folder / "ready.json"

    @contextmanager
    def running(self, ready_seconds: float = 240) -> Iterator[FleetProcess]:
        """Start the fleet and wait until every pool serves; end it afterwards, whatever became of it."""
        pools, token = self.pools_file, self.folder / "token"
        pools.write_text(json.dumps({"pools": self.settings}))
        if not token.exists():
            token.touch(mode=0o600)
            token.write_text(secrets.token_hex(32))
        command = [sys.executable, "-m", "serving.fleet", "--pools", pools, "--token-file", token]
        with (self.folder / "fleet.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--ready-file", self.ready_file],
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent(signal.SIGTERM),
            )
        try:
            wait_for(lambda: self.ready_file.exists() or self.ended(), ready_seconds, "the fleet", self.log)
            assert not self.ended(), self.log()
            yield self
        finally:
            self.stop()

    def update(self, **changes: Any) -> None:
        """Change the settings of every pool and have the fleet read them."""
        assert self.process is not None
        self.settings = [one | changes for one in self.settings]
        self.pools_file.write_text(json.dumps({"pools": self.settings}))
        self.process.send_signal(signal.SIGHUP)

    def ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def stop(self) -> int:
        """End the fleet in order; returns its exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(120)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise AssertionError(f"the fleet did not end in time\n{self.log()}") from None

    def log(self) -> str:
        return (self.folder / "fleet.log").read_text(errors="replace")[-6000:]

    def ready(self) -> dict[str, Any]:
        """Return what the fleet says about itself once every pool serves."""
        found: dict[str, Any] = json.loads(self.ready_file.read_text())
        return found


def pid_of(replica: Replica) -> int:
    """Return the process that listens where this replica was registered."""
    port = int(replica.url.rpartition(":")[2])
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and any(one.port == port for one in listeners([int(entry.name)])):
            return int(entry.name)
    raise LookupError(replica.url)


def living(pool: str) -> list[Replica]:
    """Return the pool's replicas that gateways would call, by name."""
    return sorted((one for one in live_replicas() if one.name.startswith(pool)), key=lambda one: one.name)


def tiny_pool(pool: str, model: Path, folder: Path, platform_url: str, **more: Any) -> dict[str, Any]:
    """Return the settings of a pool of tiny replicas of one thread."""
    flags = {"dtype": "float32", "device": "cpu", "kv_cache_mb": 8, "adapter_memory_mb": 8, "max_num_seqs": 16}
    return {
        "pool": pool,
        "model": str(model),
        "platform_url": platform_url,
        "state_dir": str(folder / "state"),
        "credential_file": str(folder / f"credential-{pool}"),
        "address": "127.0.0.1",
        "drain_seconds": 20,
        "start_seconds": 240,
        "allow_unlocked_memory": not can_lock(1 << 28),
        "flags": flags | more.pop("flags", {}),
    } | more


class Callers:
    """Clients that stream completions of a pool without a pause, as a gateway sends them: to any replica that takes
    work, to the next one when the first refuses. `failures` are those that did not end as asked."""

    def __init__(self, pool: str, threads: int = 2, tokens: int = 120) -> None:
        self._pool, self._tokens = pool, tokens
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]
        self.answered, self.failures = 0, list[str]()

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._call()
                    self.answered += 1
                except Exception as error:
                    self.failures.append(repr(error))
        finally:
            connections.close_all()

    def _call(self) -> None:
        refusals = []
        candidates = [one for one in living(self._pool) if not one.stats.get("draining")]
        for replica in random.sample(candidates, len(candidates)):
            try:
                with httpx.stream(**self._request(replica)) as answer:
                    if answer.status_code == 503:
                        refusals.append("503")
                        continue
                    assert answer.status_code == 200, answer.read()
                    lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
            except (httpx.ConnectError, httpx.RemoteProtocolError) as error:  # no answer had begun: as gateways do
                refusals.append(repr(error))
                continue
            assert lines[-1] == "data: [DONE]", lines[-1]
            assert json.loads(lines[-2][6:])["usage"]["completion_tokens"] == self._tokens, lines[-2]
            return
        raise AssertionError(f"no replica took it: {refusals} of {[one.name for one in candidates]}")

    def _request(self, replica: Replica) -> dict[str, Any]:
        body = {"model": "any/any", "prompt": [40, 41, 42], "max_tokens": self._tokens, "temperature": 0}
        raw = json.dumps(body | {"ignore_eos": True, "stream": True}).encode()
        ticket = prediction_ticket(
            prediction_id=uuid.uuid4(),
            attempt=1,
            replica_id=replica.pk,
            organization_id=uuid.uuid4(),
            adapter=None,
            body=raw,
            deadline=time.time() + 60,
            max_prompt_tokens=64,
            max_tokens=200,
            latency_class="standard",
            stop_at_grant=False,
        )
        headers = {TICKET_HEADER: load_ticket_signer().sign(ticket), "Content-Type": "application/json"}
        url = f"{replica.url}/v1/completions"
        return {"method": "POST", "url": url, "content": raw, "headers": headers, "timeout": 30, "trust_env": False}
