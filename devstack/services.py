"""The processes of the platform on one machine: command, environment, readiness, how to stop."""

from __future__ import annotations

import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from devstack import fleet as fleet_files
from devstack.fleet import LocalFleet
from devstack.memory_lock import can_lock
from devstack.postgres import PostgresServer
from devstack.state import REPOSITORY, State
from devstack.supervisor import READY_SECONDS, ProcessSpec
from devstack.valkey import ValkeyServer

REPLICA_NAME = "local-0"
CELERY = ("celery", "-A", "marketplace.config.celery")
# The part of the user's environment that children inherit; secrets are added one by one.
_INHERITED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "USER",
    "XDG_CACHE_HOME",
    "OMP_NUM_THREADS",
    "LD_LIBRARY_PATH",
    # Spans, where a collector is named (docs/tracing.md).
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
    "OTEL_BSP_SCHEDULE_DELAY",
)


# A replica compiles the CPU kernels at its first start: half a minute on two idle cores, minutes on busy ones.
SERVING_READY_SECONDS = 400.0

# The replica's adapter memory may grow into its KV cache, 768 MiB together; a package is decrypted beside it.
LOCKED_BYTES = 1 << 30


@dataclass(frozen=True)
class Ports:
    """Loopback ports of one start."""

    web: int
    replica: int
    stripe: int


def answers(url: str, expected: set[int]) -> Callable[[], bool]:
    """Make a readiness check: `url` answers with one of the expected statuses within a second."""

    def check() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=1) as response:
                return response.status in expected
        except urllib.error.HTTPError as error:
            return error.code in expected
        except OSError:
            return False

    return check


def always_ready() -> bool:
    """A readiness check for a process that the platform can do without for a moment."""
    return True


class Services:
    """Builds the process specifications of one start."""

    def __init__(
        self,
        state: State,
        ports: Ports,
        postgres: PostgresServer,
        valkey: ValkeyServer,
        inherited: dict[str, str],
        *,
        pay_at_once: bool = False,
    ) -> None:
        self.state = state
        self.ports = ports
        self._postgres = postgres
        self._valkey = valkey
        # The demonstration pays out what a creator has earned a minute ago; without it the platform's own terms hold.
        self._payout_terms = {"PAYOUT_RESERVE_DAYS": "0", "PAYOUT_MINIMUM_CENTS": "1"} if pay_at_once else {}
        self._inherited = {name: inherited[name] for name in _INHERITED if name in inherited}

    @property
    def web_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.web}"

    @property
    def replica_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.replica}"

    @property
    def stripe_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.stripe}"

    @property
    def credential_file(self) -> Path:
        """Return the file from which the replica takes its credential, once."""
        return self.state.root / "replica" / "credential"

    def platform_environment(self) -> dict[str, str]:
        """Return the environment of web process, worker, beat and management commands (marketplace/config/env.py)."""
        secrets = self.state.secrets
        return self._inherited | {
            "PYTHONUNBUFFERED": "1",
            "DJANGO_SETTINGS_MODULE": "marketplace.config.settings",
            "DATABASE_URL": self._postgres.url("intarsia"),
            "VALKEY_URL": self._valkey.url(),
            "SECRET_KEY": secrets["secret_key"],
            "API_KEY_PEPPER": secrets["api_key_pepper"],
            "REPLICA_NETWORKS": "127.0.0.0/8",
            "ROOT_KEY_FILE": str(self.state.root / "keys" / "root.key"),
            "BLOB_DIR": str(self.state.root / "blobs"),
            "PUBLIC_URL": self.web_url,
            "EMAIL_URL": f"file://{quote(str(self.state.mails))}",
            "STRIPE_API_KEY": secrets["stripe_api_key"],
            "STRIPE_API_BASE": self.stripe_url,
            "STRIPE_WEBHOOK_SECRET": secrets["stripe_webhook_secret"],
            **self._payout_terms,
        }

    def schema_environment(self) -> dict[str, str]:
        """Return the environment of commands that change the schema: they alone know the administrator's login."""
        return self.platform_environment() | {"DATABASE_ADMIN_URL": self._postgres.admin_url("intarsia")}

    def postgres(self) -> ProcessSpec:
        return ProcessSpec(
            name="postgres",
            command=self._postgres.command(),
            environment={"PATH": "/usr/bin:/bin"},
            ready=self._postgres.is_ready,
            stop_signal=signal.SIGINT,  # "fast": disconnects clients, no waiting for them
            working_directory="/",
            popen_arguments=self._postgres.account.popen_arguments(),
        )

    def valkey(self) -> ProcessSpec:
        return ProcessSpec(name="valkey", command=self._valkey.command(), environment={}, ready=self._valkey.is_ready)

    def stripe_double(self) -> ProcessSpec:
        secrets = self.state.secrets
        return self._python(
            "stripe-double",
            [
                "devstack.stripe_double",
                f"--port={self.ports.stripe}",
                f"--state-file={self.state.root / 'stripe-double.json'}",
                f"--webhook-url={self.web_url}/webhooks/stripe",
            ],
            self._inherited
            | {"STRIPE_API_KEY": secrets["stripe_api_key"], "STRIPE_WEBHOOK_SECRET": secrets["stripe_webhook_secret"]},
            answers(f"{self.stripe_url}/v1/events", {200, 401}),
        )

    def web(self) -> ProcessSpec:
        return self._python(
            "web",
            [
                "uvicorn",
                "marketplace.config.asgi:application",
                "--host=127.0.0.1",
                f"--port={self.ports.web}",
                "--lifespan=on",
                "--http=protocol.http1:EdgeProtocol",
                "--no-access-log",
                "--no-proxy-headers",
                "--log-level=warning",
                "--timeout-graceful-shutdown=5",
            ],
            self.platform_environment(),
            answers(f"{self.web_url}/healthz", {200}),
        )

    def worker(self) -> ProcessSpec:
        options = ("--concurrency=2", "--loglevel=WARNING", "--without-gossip", "--without-mingle")
        return self._python("worker", [*CELERY, "worker", *options], self.platform_environment(), always_ready)

    def runs(self) -> ProcessSpec:
        """Return the worker of evaluations and comparisons: minutes long, with rows in the clear in its memory alone.

        It is stopped at once, in the middle of a run: the next worker goes on where it was, and pays for nothing twice.
        """
        options = ("--queues=runs", "--hostname=runs@%h", "--concurrency=2", "--loglevel=WARNING")
        quiet = ("--without-gossip", "--without-mingle")
        worker = self._python("runs", [*CELERY, "worker", *options, *quiet], self.platform_environment(), always_ready)
        return replace(worker, stop_signal=signal.SIGQUIT)

    def jobs(self) -> ProcessSpec:
        """Return the worker of batches and background predictions, which is stopped at once, as that of runs is."""
        options = ("--queues=jobs", "--hostname=jobs@%h", "--concurrency=2", "--loglevel=WARNING")
        quiet = ("--without-gossip", "--without-mingle")
        worker = self._python("jobs", [*CELERY, "worker", *options, *quiet], self.platform_environment(), always_ready)
        return replace(worker, stop_signal=signal.SIGQUIT)

    def beat(self) -> ProcessSpec:
        schedule = self.state.run / "beat-schedule"
        options = ("--loglevel=WARNING", f"--schedule={schedule}", "--pidfile=")
        return self._python("beat", [*CELERY, "beat", *options], self.platform_environment(), always_ready)

    def replica(self) -> ProcessSpec:
        return self._python(
            "serving",
            [
                "serving",
                f"--model={self.state.base_model}",
                "--host=127.0.0.1",
                f"--port={self.ports.replica}",
                f"--platform-url={self.web_url}",
                f"--advertise-url={self.replica_url}",
                f"--state-dir={self.state.root / 'replica'}",
                f"--replica-name={REPLICA_NAME}",
                f"--credential-file={self.credential_file}",
                "--adapter-memory-mb=256",
                *([] if can_lock(LOCKED_BYTES) else ["--allow-unlocked-memory"]),
            ],
            self._inherited | {"PYTHONUNBUFFERED": "1"},
            answers(f"{self.replica_url}/readyz", {200}),
            ready_seconds=SERVING_READY_SECONDS,
        )

    def fleet(self, fleet: LocalFleet) -> ProcessSpec:
        """Return the head of Ray with every pool: it drains and ends them all when it is told to stop."""
        spec = self._python(
            "fleet",
            fleet.command(),
            self._inherited | {"PYTHONUNBUFFERED": "1"},
            fleet.ready_file.exists,
            ready_seconds=fleet_files.READY_SECONDS,
        )
        return replace(spec, stop_seconds=fleet_files.STOP_SECONDS)

    def manage(self, *arguments: str) -> list[str]:
        """Return argv of a management command."""
        return [sys.executable, str(REPOSITORY / "manage.py"), *arguments]

    def _python(
        self,
        name: str,
        module: list[str],
        environment: dict[str, str],
        ready: Callable[[], bool],
        ready_seconds: float = READY_SECONDS,
    ) -> ProcessSpec:
        """Run a Python module with its arguments."""
        return ProcessSpec(
            name=name,
            command=[sys.executable, "-m", *module],
            environment=environment | {"PYTHONPATH": str(REPOSITORY)},
            ready=ready,
            ready_seconds=ready_seconds,
            working_directory=str(REPOSITORY),
        )
