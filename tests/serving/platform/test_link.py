"""The link to the platform against a scripted vault: registering, registering again, renewing, going dark."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.admin import ReplicaStats
from protocol.encoding import decode_base64url, encode_base64url
from protocol.leases import LeaseAnswer, PackageIdentity
from protocol.replicas import EnrolmentRequest, Heartbeat, HeartbeatAnswer, Registered, Registration
from protocol.version import PROTOCOL_VERSION
from sealed_weights import LeaseGrant, seal_lease
from serving.platform.errors import LeaseRefused, ProtocolViolation, SessionRefused, VaultUnreachable
from serving.platform.identity import ReplicaIdentity
from serving.platform.leases import LeaseTable, boot_clock
from serving.platform.link import Description, PlatformLink
from serving.platform.receipts import ReceiptSigner
from serving.platform.tickets import TicketVerifier

A, DEK = "aa" * 32, bytes(range(32))
DESCRIPTION = Description("http://127.0.0.1:1", "ab" * 32, {"kind": "none"})
STATS = ReplicaStats(
    steps=0,
    max_adapters_in_one_batch=0,
    batches_with_several_adapters=0,
    prompt_tokens=0,
    generated_tokens=0,
    finished=0,
    failed=0,
    running=0,
    waiting=0,
    kv_blocks_used=0,
    kv_blocks_total=8,
    resident=[],
    leased=[],
)


class Vault:
    """`VaultClient` without HTTP: answers as the platform, and misbehaves on demand."""

    def __init__(self) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.enrolments: list[EnrolmentRequest] = []
        self.registrations: list[Registration] = []
        self.beats: list[list[str]] = []
        self.problem: Exception | None = None
        self.revoked: list[str] = []
        self.lease_changes: dict[str, Any] = {}
        self.replica_id = uuid.uuid4()

    def enrol(self, request: EnrolmentRequest) -> None:
        self.enrolments.append(request)

    def challenge(self, name: str) -> str:
        if self.problem:
            raise self.problem
        return encode_base64url(bytes(32))

    def register(self, registration: Registration) -> Registered:
        self.registrations.append(registration)
        self.replica_id = uuid.uuid4()
        keys = {"k": encode_base64url(bytes(self.key.public_key().public_bytes_raw()))}
        return Registered(
            protocol_version=PROTOCOL_VERSION,
            replica_id=self.replica_id,
            session_token="token",
            vault_public_key=keys["k"],
            ticket_keys=keys,
            heartbeat_seconds=0.02,
            lease_seconds=30.0,
        )

    def heartbeat(self, replica_id: str, beat: Heartbeat) -> HeartbeatAnswer:
        if self.problem:
            raise self.problem
        leases = [str(release_id) for release_id in beat.leases]
        self.beats.append(leases)
        keys = {"k": encode_base64url(bytes(self.key.public_key().public_bytes_raw()))}
        return HeartbeatAnswer({lease: 30.0 for lease in leases}, self.revoked, keys)

    def lease(self, digest: str, purpose: str) -> LeaseAnswer:
        facts: dict[str, Any] = {
            "release_id": uuid.uuid4(),
            "replica_id": self.replica_id,
            "model_id": uuid.uuid4(),
            "version": 1,
            "digest": digest,
            "expires_at": 0,
            "evidence_hash": bytes(32),
        }
        grant = LeaseGrant(**(facts | self.lease_changes))
        public = decode_base64url(self.registrations[-1].hpke_public_key)
        sealed = seal_lease(grant, DEK, public, self.key)
        identity = PackageIdentity(uuid.uuid4(), grant.model_id, 1, "ab" * 32)
        return LeaseAnswer(sealed.to_json(), encode_base64url(bytes(32)), identity, 100)

    def close(self) -> None:
        pass


class Running:
    def __init__(self, folder: Path) -> None:
        self.vault, self.skipped = Vault(), 0.0  # seconds that the clock of the leases is ahead
        self.leases = LeaseTable(lambda: boot_clock() + self.skipped)
        (folder / "credential").write_text("a credential of staff\n")
        self.ended: list[str] = []
        self.ids: list[str] = []
        self.leases.on_end = self.ended.append
        self.ready = threading.Event()
        self.link = PlatformLink(
            self.vault,  # type: ignore[arg-type]
            ReplicaIdentity(folder / "identity", "r", folder / "credential"),
            ReceiptSigner("ab" * 32),
            TicketVerifier(),
            self.leases,
            stats=lambda: STATS,
            on_registered=self.ids.append,
        )
        self.link.start(DESCRIPTION, self.ready)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    made.link.close()


def eventually(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def registered(running: Running) -> Running:
    running.ready.set()
    eventually(lambda: running.link.registered and len(running.vault.beats) > 1)
    return running


def test_nothing_is_said_before_the_engine_is_ready(running: Running) -> None:
    time.sleep(0.1)
    assert running.vault.registrations == [] and not running.link.registered
    registered(running)
    assert running.ids == [running.link.replica_id]


def test_registration_is_tried_again_until_the_platform_answers(running: Running) -> None:
    running.vault.problem = VaultUnreachable("no answer")
    running.ready.set()
    time.sleep(0.3)
    assert not running.link.registered
    running.vault.problem = None
    registered(running)


def test_a_refused_session_drops_every_lease_and_registers_anew_with_the_same_keys(running: Running) -> None:
    registered(running)
    running.link.request_key(A, "serve")
    running.vault.problem = SessionRefused("unknown")
    eventually(lambda: running.ended == [A])
    running.vault.problem = None
    eventually(lambda: len(running.vault.registrations) == 2 and running.link.registered)
    first, second = running.vault.registrations
    assert first.hpke_public_key == second.hpke_public_key
    assert first.receipt_public_key == second.receipt_public_key
    assert len(set(running.ids)) == 2


def test_an_unreachable_platform_keeps_the_session_and_the_leases_until_they_run_out(running: Running) -> None:
    registered(running)
    running.link.request_key(A, "serve")
    running.vault.problem = VaultUnreachable("no answer")
    time.sleep(0.3)
    assert running.link.registered and running.leases.is_live(A) and running.ended == []
    assert len(running.vault.registrations) == 1


def test_a_partition_ends_every_lease_28_seconds_after_the_last_heartbeat(running: Running) -> None:
    registered(running)
    running.link.request_key(A, "serve")
    running.vault.problem = VaultUnreachable("no answer")
    beats = len(running.vault.beats)
    running.skipped = 28.0  # the threads do not wait: their pauses are on another clock
    eventually(lambda: running.ended == [A])  # by the guard, without anyone who asks
    assert running.link.registered and len(running.vault.beats) <= beats + 1
    assert not running.leases.is_live(A)


def test_leases_are_renewed_and_a_revoked_digest_ends_with_the_next_heartbeat(running: Running) -> None:
    registered(running)
    key = running.link.request_key(A, "serve")
    assert key.dek == DEK
    eventually(lambda: [key.release_id] in running.vault.beats)
    running.vault.revoked = [A]
    eventually(lambda: running.ended == [A])
    with pytest.raises(LeaseRefused):
        running.link.request_key(A, "serve")


@pytest.mark.parametrize("changes", [{"digest": "bb" * 32}, {"replica_id": uuid.uuid4()}])
def test_a_lease_for_another_package_or_replica_is_refused(running: Running, changes: dict[str, Any]) -> None:
    registered(running)
    running.vault.lease_changes = changes
    with pytest.raises(ProtocolViolation):
        running.link.request_key(A, "serve")
    assert running.leases.held() == []


def test_a_lease_that_the_vault_did_not_sign_is_refused(running: Running) -> None:
    registered(running)
    running.vault.key = Ed25519PrivateKey.generate()
    with pytest.raises(ProtocolViolation):
        running.link.request_key(A, "serve")
    assert running.leases.held() == []
