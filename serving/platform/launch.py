"""Assembly and start of a replica's platform side: `python -m serving --platform-url …`."""

from __future__ import annotations

import hashlib
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.checkpoints import ComputedIn, checkpoint_fingerprint
from protocol.fleet import LOAD_HEADER, LoadNow, format_load
from serving.config import ServingConfig
from serving.engine import Engine
from serving.engine.watchdog import Watchdog
from serving.errors import ConfigError
from serving.http.app import create_app, grammar_compiler
from serving.http.contracts import ContractDesk
from serving.http.errors import json_response
from serving.http.metrics import Gauge
from serving.http.server import run_server
from serving.platform.admin import Administration, load_now, snapshot
from serving.platform.config import PlatformConfig
from serving.platform.contract_check import ContractCheck
from serving.platform.downloads import Downloads
from serving.platform.examples import ExampleRunner
from serving.platform.farewell import say_goodbye
from serving.platform.fleet_link import Acts
from serving.platform.identity import ReplicaIdentity
from serving.platform.journal import UsageJournal
from serving.platform.kv_reader import HttpsTransport, KvReader, kv_gauges
from serving.platform.kv_source import KvSource
from serving.platform.leases import LeaseTable
from serving.platform.link import Description, PlatformLink
from serving.platform.packages import PackageStore
from serving.platform.predictions import PredictionDesk
from serving.platform.receipts import ReceiptSigner
from serving.platform.reference import ReferenceRunner
from serving.platform.sealed import SealedAdapterSource
from serving.platform.tickets import TicketVerifier
from serving.platform.vault_client import VaultClient
from serving.platform.verify import Verifier
from serving.replica import Base, build_engine, served_dtype

log = logging.getLogger(__name__)

_PROGRAM = ("serving", "lora_kernels", "sealed_weights", "protocol", "routing")


@dataclass(frozen=True, slots=True)
class PlatformReplica:
    """A replica ready to be served: start the link with the server, close link and journal after it."""

    app: ASGIApp
    engine: Engine
    link: PlatformLink
    journal: UsageJournal
    description: Description
    verifier: Verifier
    kv_reader: KvReader
    watchdog: Watchdog
    kv_source: KvSource | None = None

    def start(self) -> None:
        """Start everything beside the server, which starts the engine: registration goes on until it succeeds."""
        threading.Thread(target=self.verifier.probe, name="probe-confinement", daemon=True).start()
        self.watchdog.start()
        self.link.start(self.description, self.engine.ready)

    def hand_over(self) -> bool:
        """Have other replicas pull the conversations of this one, which drains and goes on serving pulls until `close`;
        return whether they will."""
        return self.kv_source is not None and self.link.hand_over()

    def close(self) -> None:
        """Stop beating, write the last records and say good-bye; the engine has stopped by now."""
        self.watchdog.close()
        self.kv_reader.close()
        if self.kv_source is not None:
            self.kv_source.close()
        try:
            self.link.close(lambda client, replica_id: say_goodbye(client, replica_id, self.journal))
        finally:
            self.journal.close()


def build_replica(
    config: ServingConfig, platform: PlatformConfig, fingerprint: Future[bytes] | None = None
) -> PlatformReplica:
    """Load the base model and open the journal. Nothing is sent to the platform yet.

    Raises JournalUnavailable, and what `Base.from_dir` and `build_engine` raise.
    """
    journal = UsageJournal(platform.journal_dir)  # first, because the journal takes a lock
    try:
        return _build(config, platform, journal, fingerprint)
    except BaseException:
        journal.close()
        raise


def _build(
    config: ServingConfig, platform: PlatformConfig, journal: UsageJournal, fingerprint: Future[bytes] | None
) -> PlatformReplica:
    if config.tensor_parallel > 1 and (platform.role != "both" or platform.transfer_url is not None):
        raise ConfigError(
            "--role, --transfer-url: not with --tensor-parallel, whose ranks hold the KV of some heads each; leave "
            "them out"
        )
    base = Base.from_dir(config.model, fingerprint)
    checkpoint = served_checkpoint(config, base.fingerprint)
    signer, tickets, leases = ReceiptSigner(checkpoint), TicketVerifier(), LeaseTable()
    identity = ReplicaIdentity(
        platform.identity_dir,
        platform.replica_name,
        platform.credential_file,
        shared_credential=platform.shared_credential,
    )
    client = VaultClient(platform.platform_url)
    packages = PackageStore(platform.package_dir, Downloads(client, platform.package_origins))
    must_lock = not platform.allow_unlocked_memory
    # Link, source and engine refer to each other in a ring: the link's callbacks use objects that are made below, and
    # are called only after `start`.
    link = PlatformLink(
        client,
        identity,
        signer,
        tickets,
        leases,
        acts=Acts(
            snapshot=lambda: snapshot(engine, verifier.missing),
            drop=lambda digests: [engine.revoke(digest) for digest in digests],
            prefetch=lambda digests: engine.adapters.hint(digests),
        ),
        on_registered=lambda replica_id: desk.settle_interrupted(replica_id),
    )
    source = SealedAdapterSource(link, packages, base.spec, must_lock=must_lock)
    engine = build_engine(config, base, source, must_lock=must_lock)

    def end(digest: str) -> None:
        """Refuse, abort, zero; a later ticket may readmit the adapter."""
        source.forget(digest)
        engine.revoke(digest)

    leases.on_end = end
    layout = transfer_layout(engine)
    kv_reader = KvReader(engine, HttpsTransport(signer), layout)
    desk = PredictionDesk(engine, tickets, leases, journal, signer, role=platform.role, reader=kv_reader)
    grammars = grammar_compiler(engine, base.tokenizer)
    contracts = ContractCheck(ContractDesk(source, base.tokenizer), base.tokenizer, grammars, engine.max_model_len)
    examples = ExampleRunner(engine, base.tokenizer, grammars)
    references = ReferenceRunner(engine, base.tokenizer.vocab_size, served_dtype(config))
    verifier = Verifier(
        engine, base.tokenizer, base.spec, link, packages, source, contracts, examples, references, must_lock=must_lock
    )
    administration = Administration(engine, tickets, leases, desk, verifier, kv_reader)
    app = create_app(
        engine,
        base.tokenizer,
        authorizer=desk,
        contracts=source,
        observer=desk,
        grammars=grammars,
        extra_routes=administration.routes(),
        max_body_bytes=config.max_body_bytes,
        shutdown_grace_s=config.shutdown_grace_s,
        gauges=[
            Gauge("journal_lag_seconds", "Age of the oldest usage record not yet on the disk", journal.lag),
            *kv_gauges(engine, kv_reader),
            Gauge(
                "confinement_missing",
                "Layers of the verifying child's confinement that the system refuses",
                lambda: len(verifier.missing),
            ),
        ],
    )
    kv_source = None
    if platform.transfer_port is not None:
        kv_source = KvSource(engine, tickets, leases, signer, layout, _transfer_listener(platform))
        kv_source.start()
    return PlatformReplica(
        TellsLoad(ReadyWhenRegistered(app, link, journal), lambda: load_now(engine)),
        engine,
        link,
        journal,
        _describe(platform, checkpoint),
        verifier,
        kv_reader,
        Watchdog(engine, config.step_timeout_s),
        kv_source,
    )


def transfer_layout(engine: Engine) -> str:
    """Return the SHA-256 (hex) of what KV that crosses between replicas depends on: the layout, and this build."""
    return hashlib.sha256(f"{engine.planner.exchange.layout} {build_digest()}".encode()).hexdigest()


def _transfer_listener(platform: PlatformConfig) -> socket.socket:
    host = platform.transfer_host
    try:
        return socket.create_server(
            (host, platform.transfer_port or 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        raise ConfigError(f"--transfer-url, --transfer-host {host}: {error.strerror}; choose another port") from None


class ReadyWhenRegistered:
    """ASGI middleware: `/readyz` answers 503 until the platform knows this replica and the journal can be written."""

    def __init__(self, app: ASGIApp, link: PlatformLink, journal: UsageJournal) -> None:
        self._app, self._link, self._journal = app, link, journal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        fine = self._link.registered and self._journal.accepting
        if scope["type"] == "http" and scope["path"] == "/readyz" and not fine:
            status = "usage journal cannot be written" if self._link.registered else "not registered with the platform"
            await json_response({"status": status}, 503, {"Retry-After": "1"})(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class TellsLoad:
    """ASGI middleware: the answers to predictions tell this replica's load of that moment in their heads."""

    def __init__(self, app: ASGIApp, load: Callable[[], LoadNow]) -> None:
        self._app, self._load = app, load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                header = LOAD_HEADER.encode(), format_load(self._load()).encode()
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        is_prediction = scope["type"] == "http" and scope["path"].startswith("/v1/") and scope["method"] == "POST"
        await self._app(scope, receive, tell if is_prediction else send)


def run(
    config: ServingConfig, platform: PlatformConfig, listener: socket.socket, fingerprint: Future[bytes] | None = None
) -> int:
    """Serve on `listener` until SIGTERM or SIGINT; returns the exit code. Raises what `build_replica` raises."""
    replica = build_replica(config, platform, fingerprint)
    try:
        replica.start()
        log.info("listening on http://%s:%d, registering with %s", *listener.getsockname()[:2], platform.platform_url)
        started = run_server(replica.app, replica.engine, listener, config.shutdown_grace_s)
    finally:
        replica.close()
    return 0 if started else 1


def served_checkpoint(config: ServingConfig, files: str) -> str:
    """Return the fingerprint of what is served: of the files, and of the precision that these flags compute them in."""
    computed = ComputedIn.of_flags(dtype=config.dtype, kv_dtype=config.kv_dtype, adapter_dtype=config.adapter_dtype)
    return checkpoint_fingerprint(files, computed)


def _describe(platform: PlatformConfig, checkpoint: str) -> Description:
    return Description(
        url=platform.advertise_url,
        base=checkpoint,
        evidence={"kind": "build-digest", "digest": build_digest()},
        role=platform.role,
        transfer_url=platform.transfer_url or "",
    )


def build_digest() -> str:
    """Return SHA-256 over name and content of every source file of this program, which identifies the build."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for package in _PROGRAM:
        for path in sorted((root / package).rglob("*")):
            if path.suffix in {".py", ".c", ".h"} and path.is_file():
                digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()
