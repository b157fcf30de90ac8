"""The live link to the platform: register, stay heard of, register again when the session is refused.

Three threads: one registers, and beats every 2 s while the fleet link is down; one holds the fleet link; one ends
leases on time even when both block.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args
from uuid import UUID

import msgspec

from protocol.encoding import decode_base64url, encode_base64url
from protocol.errors import ProtocolError
from protocol.fleet import MAX_RETURNED
from protocol.leases import PackageIdentity, Purpose
from protocol.messages import to_fields
from protocol.pulls import Role
from protocol.replicas import (
    Heartbeat,
    Introduction,
    Registered,
    Registration,
    decode_keys,
    signed_message,
)
from protocol.version import PROTOCOL_VERSION
from sealed_weights import ReplicaKeypair, SealedLease, SealError, open_lease, wipe
from serving.platform.errors import LeaseRefused, PlatformError, ProtocolViolation, SessionRefused
from serving.platform.fleet_link import Acts, FleetLink
from serving.platform.identity import ReplicaIdentity
from serving.platform.key_requests import KeyRequests
from serving.platform.leases import LeaseTable
from serving.platform.receipts import ReceiptSigner
from serving.platform.tickets import TicketVerifier
from serving.platform.vault_client import VaultClient

log = logging.getLogger(__name__)

GUARD_SECONDS = 0.25
MAX_BACKOFF_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Description:
    """A replica's description for its registration. `base` is the fingerprint of its base model."""

    url: str
    base: str
    evidence: dict[str, str]
    role: Role = "both"
    transfer_url: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class HeldKey:
    """A data key on loan and the identity that its package must have. Wipe `dek` after use."""

    release_id: str
    digest: str
    dek: bytearray
    creator_public_key: bytes
    identity: PackageIdentity
    package_size: int

    def wipe(self) -> None:
        """Zero the key."""
        wipe(self.dek)


class PlatformLink:
    """The connection between this boot and the vault. `start` once, `close` at the end.

    acts: what this replica is, and what it does when it is told; without `adopt`, which the link fills in
    on_registered: called in the link's thread after every registration, with the replica id
    """

    def __init__(
        self,
        client: VaultClient,
        identity: ReplicaIdentity,
        signer: ReceiptSigner,
        tickets: TicketVerifier,
        leases: LeaseTable,
        *,
        acts: Acts,
        on_registered: Callable[[str], None],
    ) -> None:
        self._client, self._identity, self._signer = client, identity, signer
        self._tickets, self.leases = tickets, leases
        self._acts, self._on_registered = acts, on_registered
        self._fleet = FleetLink(client.platform_url, leases, replace(acts, adopt=self._adopt_keys))
        self._keys: dict[Purpose, KeyRequests] = {
            purpose: KeyRequests(lambda digests, purpose=purpose: client.lease(digests, purpose))  # type: ignore[misc]
            for purpose in get_args(Purpose)
        }
        self._keypair = ReplicaKeypair.generate()  # this boot's key pair, which is never written anywhere
        self._session: Registered | None = None
        self._stop = threading.Event()
        self._description: Description | None = None
        self._ready = threading.Event()
        self._threads = [
            threading.Thread(target=self._talk, name="platform-link", daemon=True),
            threading.Thread(target=self._guard, name="lease-guard", daemon=True),
        ]

    @property
    def registered(self) -> bool:
        """Return whether the platform knows this boot."""
        return self._session is not None

    @property
    def replica_id(self) -> str | None:
        """Return the id of the latest registration."""
        return str(self._session.replica_id) if self._session else None

    def start(self, description: Description, ready: threading.Event) -> None:
        """Start the threads; once `ready` is set, registration goes on in the background until it succeeds."""
        self._description = description
        self._ready = ready
        for thread in self._threads:
            thread.start()
        self._fleet.start()

    def close(self, goodbye: Callable[[VaultClient, str], object] | None = None) -> None:
        """Stop the threads and end every lease. `goodbye` then gets client and id, if it is registered.

        The platform sees the fleet link close: another boot need not wait.
        """
        self._stop.set()
        self._fleet.close()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(10)
        self.leases.drop_all()
        if goodbye is not None and self._session is not None:
            goodbye(self._client, str(self._session.replica_id))
        self._client.close()

    def hand_over(self) -> bool:
        """Ask the platform, once, to hand this replica's conversations over; return whether it does. Never raises: what
        is not handed over is computed again."""
        session = self._session
        if session is None:
            return False
        try:
            return self._client.hand_over(str(session.replica_id))
        except PlatformError as error:
            log.warning("conversations are not handed over: %s", error)
            return False

    def request_key(self, digest: str, purpose: Purpose) -> HeldKey:
        """Lease the key of `digest`; blocks for two calls at most. Raises LeaseRefused or another PlatformError.

        Requests of other threads meanwhile go together in one call.
        """
        session = self._session
        if session is None:
            raise SessionRefused("this replica is not registered yet")
        asked_at = self.leases.now()
        answer = self._keys[purpose].key(digest)
        dek = self._open(answer.lease, digest, session)
        key = HeldKey(
            release_id=str(answer.lease["release_id"]),
            digest=digest,
            dek=dek,
            creator_public_key=_decoded(answer.creator_public_key),
            identity=answer.identity,
            package_size=answer.package_size,
        )
        if not self.leases.grant(key.release_id, digest, asked_at=asked_at):
            key.wipe()
            raise LeaseRefused("adapter_revoked", "the lease was over before it could be used")
        return key

    def _open(self, lease: dict[str, Any], digest: str, session: Registered) -> bytearray:
        try:
            sealed = SealedLease.from_json(lease)
            if sealed.grant.digest != digest or sealed.grant.replica_id != session.replica_id:
                raise ProtocolViolation("the lease is for another package or replica")
            return open_lease(sealed, self._keypair, _decoded(session.vault_public_key))
        except SealError as error:
            raise ProtocolViolation(f"the lease does not open: {error}") from None

    # -- threads ----------------------------------------------------------------------------------------------------

    def _guard(self) -> None:
        while not self._stop.wait(GUARD_SECONDS):
            try:
                self.leases.expire()
            except Exception:
                log.exception("a lease could not be ended")  # this thread must outlive any such trouble

    def _talk(self) -> None:
        while not self._ready.wait(GUARD_SECONDS) and not self._stop.is_set():
            pass
        backoff = 0.25
        while not self._stop.is_set():
            try:
                if self._session is None:
                    self._register()
                elif self._fleet.refused:
                    raise SessionRefused("over the fleet link")
                elif not self._fleet.fresh:
                    self._beat(self._session)
                backoff, pause = 0.25, self._session.heartbeat_seconds if self._session else 0.0
            except SessionRefused as error:
                log.warning("the platform refused this replica's session (%s): registering again", error)
                self._session = None
                self.leases.drop_all()
                pause = backoff
            except PlatformError as error:
                log.warning("platform %s: %s", "heartbeat" if self._session else "registration", error)
                # Delays differ between replicas, so that they do not all contact a recovering platform at once.
                pause = backoff * random.uniform(0.5, 1.0)
                limit = self._session.heartbeat_seconds if self._session else MAX_BACKOFF_SECONDS
                backoff = min(backoff * 2, limit)
            except Exception:
                log.exception("the link to the platform failed")
                pause = 1.0
            self._stop.wait(pause)

    def _register(self) -> None:
        about = self._description
        assert about is not None, "start gives it"
        self._identity.enrol(self._client)
        introduction = Introduction(
            protocol_version=PROTOCOL_VERSION,
            name=self._identity.name,
            url=about.url,
            base=about.base,
            hpke_public_key=encode_base64url(self._keypair.public_bytes()),
            receipt_public_key=encode_base64url(self._signer.public_bytes()),
            nonce=self._client.challenge(self._identity.name),
            evidence=about.evidence,
            role=about.role,
            transfer_url=about.transfer_url,
        )
        message = signed_message(introduction)
        signatures = {
            "signature": encode_base64url(self._signer.sign_registration(message)),
            "identity_signature": encode_base64url(self._identity.sign(message)),
        }
        registration = msgspec.convert(to_fields(introduction) | signatures, Registration)
        asked_at = self.leases.now()
        session = self._client.register(registration)
        self._adopt(session, session.ticket_keys)
        self.leases.renew(asked_at=asked_at)
        self._session = session
        self._fleet.use(session.session_token)
        log.info("registered with the platform as %s, replica %s", self._identity.name, session.replica_id)
        self._on_registered(str(session.replica_id))

    def _beat(self, session: Registered) -> None:
        asked_at, returned = self.leases.now(), self.leases.returned(MAX_RETURNED)
        beat = Heartbeat(to_fields(self._acts.snapshot().figures), [UUID(release_id) for release_id in returned])
        answer = self._client.heartbeat(str(session.replica_id), beat)
        self._adopt(session, answer.ticket_keys)
        self.leases.confirm_returned(returned)
        if news := self.leases.revoke(answer.revoked):
            self._acts.drop(news)
        self.leases.end(answer.ended)
        self.leases.renew(asked_at=asked_at)

    def _adopt_keys(self, ticket_keys: dict[str, str]) -> None:
        if self._session is not None:
            self._adopt(self._session, ticket_keys)

    def _adopt(self, session: Registered, ticket_keys: dict[str, str]) -> None:
        try:
            keys = decode_keys(ticket_keys)
        except ProtocolError as error:
            raise ProtocolViolation(f"the platform's ticket keys: {error}") from None
        self._tickets.adopt(str(session.replica_id), keys)


def _decoded(text: str) -> bytes:
    try:
        return decode_base64url(text)
    except ProtocolError as error:
        raise ProtocolViolation(f"a key from the platform: {error}") from None
