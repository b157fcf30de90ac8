"""The link to the platform against a scripted vault: registering, registering again, renewing, going dark."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.admin import ReplicaFigures
from protocol.encoding import decode_base64url, encode_base64url
from protocol.fleet import LoadNow
from protocol.leases import KeyOnLoan, PackageIdentity
from protocol.replicas import EnrolmentRequest, Heartbeat, HeartbeatAnswer, Registered, Registration
from protocol.version import PROTOCOL_VERSION
from sealed_weights import LeaseGrant, seal_lease
from serving.platform.errors import LeaseRefused, ProtocolViolation, SessionRefused, VaultUnreachable
from serving.platform.fleet_link import Acts
from serving.platform.fleet_views import Snapshot
from serving.platform.identity import ReplicaIdentity
from serving.platform.leases import LeaseTable, boot_clock
from serving.platform.link import Description, PlatformLink
from serving.platform.receipts import ReceiptSigner
from serving.platform.tickets import TicketVerifier

A, REFUSED, DEK = "aa" * 32, "ff" * 32, bytes(range(32))
DESCRIPTION = Description("http://127.0.0.1:1", "ab" * 32, {"kind": "none"})
NOW = Snapshot(
    LoadNow(),
    ReplicaFigures(
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
    ),
)


class Vault:
    """`VaultClient` without HTTP: answers as the platform, without fleet links, and misbehaves on demand."""

    platform_url = "http://127.0.0.1:9"

    def __init__(self) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.enrolments: list[EnrolmentRequest] = []
        self.registrations: list[Registration] = []
        self.beats: list[list[str]] = []
        self.problem: Exception | None = None
        self.refused = 0
        self.revoked: list[str] = []
        self.ended: list[str] = []
        self.batches: list[int] = []
        self.held_up: threading.Event | None = None  # until when keys are not given out
        self.lease_changes: dict[str, Any] = {}
        self.replica_id = uuid.uuid4()

    def enrol(self, request: EnrolmentRequest) -> None:
        self.enrolments.append(request)

    def challenge(self, name: str) -> str:
        if self.problem:
            self.refused += 1
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
            self.refused += 1
            raise self.problem
        self.beats.append([str(release_id) for release_id in beat.returned])
        keys = {"k": encode_base64url(bytes(self.key.public_key().public_bytes_raw()))}
        return HeartbeatAnswer(self.revoked, self.ended, keys)

    def hand_over(self, replica_id: str) -> bool:
        if self.problem:
            self.refused += 1
            raise self.problem
        assert replica_id == str(self.replica_id)
        return True

    def lease(self, digests: Sequence[str], purpose: str) -> list[KeyOnLoan | LeaseRefused]:
        self.batches.append(len(digests))
        lent = [self._lend(digest) for digest in digests]
        if self.held_up is not None:
            assert self.held_up.wait(30)
        return lent

    def _lend(self, digest: str) -> KeyOnLoan | LeaseRefused:
        if digest == REFUSED:
            return LeaseRefused("no_demand", "nothing needs it")
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
        return KeyOnLoan(sealed.to_json(), encode_base64url(bytes(32)), identity, 100)

    def close(self) -> None:
        pass


class Running:
    def __init__(self, folder: Path) -> None:
        self.vault, self.skipped = Vault(), 0.0  # seconds that the clock of the leases is ahead
        self.leases = LeaseTable(lambda: boot_clock() + self.skipped)
        (folder / "credential").write_text("a credential of staff\n")
        self.ended: list[str] = []
        self.dropped: list[str] = []
        self.ids: list[str] = []
        self.leases.on_end = self.ended.append
        self.ready = threading.Event()
        self.link = PlatformLink(
            self.vault,  # type: ignore[arg-type]
            ReplicaIdentity(folder / "identity", "r", folder / "credential"),
            ReceiptSigner("ab" * 32),
            TicketVerifier(),
            self.leases,
            acts=Acts(lambda: NOW, drop=self.drop, prefetch=lambda digests: None),
            on_registered=self.ids.append,
        )
        self.link.start(DESCRIPTION, self.ready)

    def drop(self, digests: Sequence[str]) -> list[Future[int]]:
        self.dropped += digests
        return [Future() for _ in digests]


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
    eventually(lambda: running.vault.refused > 1)
    assert not running.link.registered
    running.vault.problem = None
    registered(running)


def test_conversations_are_handed_over_by_a_platform_that_knows_the_replica_and_answers(running: Running) -> None:
    assert not running.link.hand_over(), "it is not registered"
    registered(running)
    assert running.link.hand_over()
    running.vault.problem = VaultUnreachable("no answer")
    assert not running.link.hand_over()
    running.vault.problem = None


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
    eventually(lambda: running.vault.refused > 2)
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


def test_a_revoked_digest_ends_with_the_next_heartbeat_and_for_good(running: Running) -> None:
    registered(running)
    key = running.link.request_key(A, "serve")
    assert key.dek == DEK
    running.vault.revoked = [A]
    eventually(lambda: running.ended == [A] and running.dropped == [A])
    beats = len(running.vault.beats)
    eventually(lambda: len(running.vault.beats) > beats + 2)
    assert running.dropped == [A], "it is told again for a while, and dropped once"
    with pytest.raises(LeaseRefused):
        running.link.request_key(A, "serve")


def test_a_revocation_that_overtakes_its_key_wins(running: Running) -> None:
    registered(running)
    running.vault.held_up = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(running.link.request_key, A, "serve")
        eventually(lambda: running.vault.batches == [1])
        running.vault.revoked = [A]
        eventually(lambda: running.leases.is_revoked(A))
        running.vault.held_up.set()
        with pytest.raises(LeaseRefused, match="over before"):
            asked.result(30)
    assert running.leases.held() == [] and running.ended == []


def test_what_was_given_back_is_told_once_with_a_heartbeat(running: Running) -> None:
    registered(running)
    key = running.link.request_key(A, "serve")
    running.leases.give_back(A)
    eventually(lambda: [key.release_id] in running.vault.beats)
    beats = len(running.vault.beats)
    eventually(lambda: len(running.vault.beats) > beats + 2)
    assert running.vault.beats.count([key.release_id]) == 1


def test_keys_that_are_asked_for_meanwhile_come_in_one_call(running: Running) -> None:
    registered(running)
    digests = [f"{number:064x}" for number in range(40)]
    running.vault.held_up = threading.Event()
    with ThreadPoolExecutor(42) as pool:
        first = pool.submit(running.link.request_key, A, "serve")
        eventually(lambda: running.vault.batches == [1])
        rest = [pool.submit(running.link.request_key, digest, "serve") for digest in digests]
        refused = pool.submit(running.link.request_key, REFUSED, "serve")
        eventually(lambda: len(running.link._keys["serve"]._waiting) == 41)
        running.vault.held_up.set()
        assert {one.result(30).digest for one in [first, *rest]} == {A, *digests}
        with pytest.raises(LeaseRefused, match="nothing needs it"):
            refused.result(30)
    assert running.vault.batches == [1, 32, 9] and len(running.leases.held()) == 41


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
