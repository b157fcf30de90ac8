"""Administrative calls to replicas (docs/protocol.md section 2): synchronous, each with a ticket and a time limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import httpx
import msgspec

from marketplace.catalog.models import Version
from marketplace.vault.errors import NoLiveReplica, ReplicaCallFailed
from marketplace.vault.models import Replica
from marketplace.vault.selectors import live_replicas
from marketplace.vault.signing import TicketSigner, load_ticket_signer

CALL_SECONDS = 5.0
VERIFY_SECONDS = 120.0  # download, decrypt, read every value, a few smoke prompts on a CPU
MAX_ANSWER_BYTES = 1 << 20


Answer = TypeVar("Answer")


class Verification(msgspec.Struct, frozen=True):
    """The outcome of a verification: a `report` when `ok`, otherwise a `refusal` with `field`, `rule` and `message`,
    safe to show to the creator."""

    ok: bool
    report: dict[str, Any] | None = None
    refusal: dict[str, str] | None = None


class JournalState(msgspec.Struct, frozen=True):
    """What a replica's journal says of one prediction: `unknown`, `running` or `final` with its receipt."""

    state: str
    receipt: str | None = None


class Revocation(msgspec.Struct, frozen=True):
    """What a replica dropped: digests, and how many running predictions it aborted."""

    revoked: list[str]
    aborted: int


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """Where to call a replica: no database row needed, so threads may use it."""

    replica_id: UUID
    url: str

    @classmethod
    def of(cls, replica: Replica) -> ReplicaAddress:
        """Take the address of a row."""
        return cls(replica.pk, replica.url)


def verify(version: Version) -> Verification:
    """Ask a live replica of the version's base model to verify its package. Takes up to two minutes.

    Raises NoLiveReplica or ReplicaCallFailed: both worth a later retry; a refused adapter is a normal answer.
    """
    replicas = live_replicas(version.model.base_model.fingerprint)
    if not replicas:
        raise NoLiveReplica("no live replica serves this base model")
    payload = {"digest": version.package_digest}
    answer = _call(ReplicaAddress.of(replicas[0]), "verify", payload, Verification, timeout=VERIFY_SECONDS)
    if (answer.report if answer.ok else answer.refusal) is None:
        raise ReplicaCallFailed("verify: the replica's answer lacks its report or refusal")
    return answer


def revoke(address: ReplicaAddress, digests: Sequence[str], *, signer: TicketSigner | None = None) -> Revocation:
    """Make a replica refuse, abort and zero these adapters; returns when it is done. Raises ReplicaCallFailed."""
    return _call(address, "revoke", {"digests": list(digests)}, Revocation, signer=signer)


def cancel(address: ReplicaAddress, jti: UUID) -> None:
    """Stop one prediction; its stream ends with a receipt. Raises ReplicaCallFailed."""
    _call(address, "cancel", {"jti": str(jti)}, dict)


def journal(address: ReplicaAddress, jti: UUID) -> JournalState:
    """Ask what became of a prediction, also one that an earlier boot of the same name ran. Raises ReplicaCallFailed."""
    return _call(address, "journal", {"jti": str(jti)}, JournalState)


def stats(address: ReplicaAddress) -> dict[str, Any]:
    """Return a replica's figures. Raises ReplicaCallFailed."""
    return _call(address, "stats", {}, dict)


def _call(
    address: ReplicaAddress,
    action: str,
    payload: dict[str, Any],
    answer_type: type[Answer],
    *,
    signer: TicketSigner | None = None,
    timeout: float = CALL_SECONDS,
) -> Answer:
    body = msgspec.json.encode(payload)
    ticket = (signer or load_ticket_signer()).sign_admin(action=action, replica_id=address.replica_id, body=body)
    headers = {"X-Intarsia-Ticket": ticket, "Content-Type": "application/json"}
    limits = httpx.Timeout(timeout, connect=min(timeout, 3.0))
    try:
        with (
            httpx.Client(timeout=limits, trust_env=False) as client,
            client.stream("POST", f"{address.url}/admin/{action}", content=body, headers=headers) as response,
        ):
            content = bytearray()
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > MAX_ANSWER_BYTES:
                    raise ReplicaCallFailed(f"{action}: the replica's answer is too long")
    except httpx.HTTPError as error:
        raise ReplicaCallFailed(f"{action}: the replica did not answer ({type(error).__name__})") from None
    if response.status_code != 200:
        raise ReplicaCallFailed(f"{action}: the replica answered {response.status_code}")
    try:
        return msgspec.json.decode(bytes(content), type=answer_type)
    except msgspec.DecodeError:
        raise ReplicaCallFailed(f"{action}: the replica's answer is not what the protocol says") from None
