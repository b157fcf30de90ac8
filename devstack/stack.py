"""Start the whole platform on this machine, keep it running, stop it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from types import FrameType
from typing import Any

import psycopg
from psycopg import sql

from devstack.console import heading, line, step
from devstack.errors import LocalStackError
from devstack.fleet import POOLS, LocalFleet
from devstack.lock import StackLock
from devstack.memory_lock import can_lock
from devstack.postgres import prepare_postgres
from devstack.samples import SampleCreators, sample_credentials
from devstack.services import LOCKED_BYTES, REPLICA_NAME, Ports, Services
from devstack.state import State, free_port, port_is_free
from devstack.supervisor import Supervisor
from devstack.valkey import prepare_valkey


class Stopped(Exception):
    """Ctrl-C, SIGTERM or SIGHUP: stop in order."""


def _raise_stopped(number: int, frame: FrameType | None) -> None:
    # A second Ctrl-C must not interrupt the orderly stop.
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    raise Stopped


class LocalStack:
    """One start of the platform. `serve()` returns when told to stop; nothing is left running."""

    def __init__(self, state: State, *, port: int | None, pay_at_once: bool = False, fleet: bool = False) -> None:
        """Take the state folder's lock. `port` None takes a free port. Raises LocalStackError when `port` is taken.

        fleet: replicas are those of a fleet on Ray Serve, instead of one plain process
        """
        if not (state.base_model / "config.json").exists():
            raise LocalStackError(f"the base model is not at {state.base_model}.\nRun `make setup`.")
        if port is not None and not port_is_free(port):
            raise LocalStackError(f"port {port} is taken by another program.\nChoose another: `make run PORT=8080`.")
        self._state = state
        self._lock = StackLock(state)
        self._port = port or free_port()
        self._supervisor = Supervisor(state.logs, lambda name, text: line(f"[yellow]{name}[/yellow] {text}"))
        self._pay_at_once = pay_at_once
        self._services: Services | None = None
        self._fleet = LocalFleet(state) if fleet else None

    def serve(self, *, samples: bool) -> None:
        """Start all, publish the sample models if `samples`, then watch until stopped."""
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, _raise_stopped)
        try:
            self._start()
            failed = self._publish_samples() if samples else []
            self._announce()
            for sentence in failed:
                line(f"[bold red]![/bold red] {sentence}")
            while True:
                self._supervisor.check()
                time.sleep(0.1)
        except Stopped:
            heading("Stopping")
        finally:
            for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(name, signal.SIG_IGN)
            self._supervisor.stop()
            self._lock.release()
            line("stopped; the state is kept in " + str(self._state.root))

    def _start(self) -> None:
        heading("Starting Intarsia")
        if not can_lock(LOCKED_BYTES):
            line("[dim]this account may not lock memory (`ulimit -l`): weights may reach swap[/dim]")
        secrets = self._state.secrets
        started = time.monotonic()
        with step("PostgreSQL and Valkey"):
            postgres = prepare_postgres(
                self._state.root,
                instance=secrets["instance"],
                port=free_port(),
                password=secrets["postgres_password"],
                application_password=secrets["postgres_application_password"],
            )
            valkey = prepare_valkey(self._state.root, port=free_port(), password=secrets["valkey_password"])
            ports = Ports(web=self._port, replica=free_port(), stripe=free_port())
            services = self._services = Services(
                self._state, ports, postgres, valkey, dict(os.environ), pay_at_once=self._pay_at_once
            )
            supervisor = self._supervisor
            supervisor.start(services.postgres())
            supervisor.start(services.valkey())
            if self._fleet is None:
                supervisor.start(services.replica())  # loads torch and the base meanwhile, and registers when it can
            else:
                self._fleet.write(services.web_url)
            supervisor.wait_ready(["postgres", "valkey"])
            _create_database(postgres.admin_url("postgres"))
        with step("database schema, keys and sample accounts"):
            self._manage(
                "prepare_platform",
                "--base-dir",
                str(self._state.base_model),
                "--credentials",
                str(sample_credentials(self._state)),
                *self._replicas(services),
            )
        if self._fleet is not None:
            supervisor.start(services.fleet(self._fleet))
        with step("web, worker, scheduler, payments double"):
            workers = (services.worker(), services.runs(), services.jobs(), services.beat())
            for spec in (services.stripe_double(), services.web(), *workers):
                supervisor.start(spec)
            supervisor.wait_ready(["stripe-double", "web"])
        if self._fleet is None:
            with step("serving replica: base model loaded, registered, warm"):
                supervisor.wait_ready(["serving"])
        else:
            with step("fleet on Ray Serve: every pool serves"):
                supervisor.wait_ready(["fleet"])
        line(f"[dim]ready after {time.monotonic() - started:.1f} s[/dim]")

    def _replicas(self, services: Services) -> list[str]:
        """Return the options of `prepare_platform` that let the replicas of this machine enrol."""
        if self._fleet is not None:
            return self._fleet.preparation()
        return ["--replica", REPLICA_NAME, "--replica-credential", str(services.credential_file)]

    def _manage(self, *arguments: str) -> None:
        assert self._services is not None
        done = subprocess.run(
            self._services.manage(*arguments),
            env=self._services.schema_environment(),
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode != 0:
            raise LocalStackError(f"`manage.py {arguments[0]}` failed:\n{(done.stderr or done.stdout)[-3000:]}")

    def _publish_samples(self) -> list[str]:
        assert self._services is not None
        return SampleCreators(self._state, self._services.web_url).publish(self._supervisor.check)

    def _announce(self) -> None:
        assert self._services is not None
        info: dict[str, Any] = {
            "pid": os.getpid(),
            "url": self._services.web_url,
            "replica_url": None if self._fleet else self._services.replica_url,
            "stripe_url": self._services.stripe_url,
            "pids": self._supervisor.pids(),
            "environment": self._services.platform_environment(),
        }
        self._lock.publish(info)
        heading(f"Intarsia is running at {info['url']}")
        credentials = json.loads(sample_credentials(self._state).read_text())
        for role, login in credentials.items():
            line(f"{role:<9} {login['email']}   password {login['password']}")
        line("staff sign in with a code, too: `make code` prints it, or give an authenticator app the secret")
        line(f"{'':<9} {self._state.secrets['sample_totp']}")
        if self._fleet is not None:
            line(f"fleet     {info['url']}/platform/fleet   as staff; or `make fleet-status`")
            for pool in POOLS:
                line(f"{'':<9} pool {pool.name}: {pool.least} to {pool.most} replicas, {pool.dtype}")
            line(f"{'':<9} kill one (`kill -9`) and watch; change {self._fleet.pools_file} and `make fleet-update`")
        line(f"mails are written to {self._state.mails}")
        line(f"[dim]logs in {self._state.logs}; stop with Ctrl-C or `make stop`[/dim]")


def _create_database(url: str) -> None:
    with contextlib.suppress(psycopg.errors.DuplicateDatabase), psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier("intarsia")))
