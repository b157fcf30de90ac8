"""Administrative calls to replicas (docs/protocol.md section 2): synchronous, each with a ticket and a time limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from marketplace.catalog.models import Version
from marketplace.vault.demand import order
from marketplace.vault.errors import NoLiveReplica, ReplicaCallFailed
from marketplace.vault.models import ReleaseOrder, Replica
from marketplace.vault.selectors import live_replicas
from marketplace.vault.signing import TicketSigner, load_ticket_signer
from protocol.admin import (
    ADMIN_PATH,
    Conversations,
    ConversationsRequest,
    ForgetRequest,
    Forgotten,
    Prefetched,
    PrefetchRequest,
    Pulling,
    PullOrder,
    PullOrders,
    Revocation,
    RevokeRequest,
    Verification,
    VerifyRequest,
)
from protocol.bodies import collect
from protocol.errors import BodyTooLarge, ProtocolError
from protocol.messages import Answer, Request, decode, encode
from protocol.tickets import TICKET_HEADER, Action

CALL_SECONDS = 5.0
VERIFY_SECONDS = 120.0  # download, decrypt, read every value, a few smoke prompts on a CPU


AnswerType = TypeVar("AnswerType", bound=Answer)


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
    assert version.package_digest is not None, "a version is verified once its package is complete"
    order(
        replica_id=replicas[0].pk,
        digest=version.package_digest,
        kind=ReleaseOrder.Kind.VERIFY,
        seconds=VERIFY_SECONDS,
    )
    asked = VerifyRequest(version.package_digest)
    answer = _call(ReplicaAddress.of(replicas[0]), "verify", asked, Verification, timeout=VERIFY_SECONDS)
    if (answer.report if answer.ok else answer.refusal) is None:
        raise ReplicaCallFailed("verify: the replica's answer lacks its report or refusal")
    return answer


def prefetch(address: ReplicaAddress, digests: Sequence[str]) -> Prefetched:
    """Ask a replica to load adapters before they are needed (`hints.py` lets it have their keys).

    Raises ReplicaCallFailed.
    """
    return _call(address, "prefetch", PrefetchRequest(list(digests)), Prefetched)


def revoke(address: ReplicaAddress, digests: Sequence[str], *, signer: TicketSigner | None = None) -> Revocation:
    """Make a replica refuse, abort and zero these adapters; returns when it is done. Raises ReplicaCallFailed."""
    return _call(address, "revoke", RevokeRequest(list(digests)), Revocation, signer=signer)


def forget(address: ReplicaAddress, scopes: Sequence[str], *, signer: TicketSigner | None = None) -> Forgotten:
    """Make a replica forget the KV and the answers of these cache scopes. Raises ReplicaCallFailed."""
    return _call(address, "forget", ForgetRequest(list(scopes)), Forgotten, signer=signer)


def conversations(address: ReplicaAddress, most: int, *, signer: TicketSigner | None = None) -> Conversations:
    """Return the conversations whose KV a replica used last. Raises ReplicaCallFailed."""
    return _call(address, "conversations", ConversationsRequest(most), Conversations, signer=signer)


def pull(address: ReplicaAddress, orders: Sequence[PullOrder], *, signer: TicketSigner | None = None) -> Pulling:
    """Have a replica pull conversations from another one; it goes on afterwards. Raises ReplicaCallFailed."""
    return _call(address, "pull", PullOrders(list(orders)), Pulling, signer=signer)


def _call(
    address: ReplicaAddress,
    action: Action,
    message: Request,
    answer_type: type[AnswerType],
    *,
    signer: TicketSigner | None = None,
    timeout: float = CALL_SECONDS,
) -> AnswerType:
    import httpx  # which loads rich and pygments: the web process starts without them

    body = encode(message)
    ticket = (signer or load_ticket_signer()).sign_admin(action=action, replica_id=address.replica_id, body=body)
    headers = {TICKET_HEADER: ticket, "Content-Type": "application/json"}
    limits = httpx.Timeout(timeout, connect=min(timeout, 3.0))
    try:
        with (
            httpx.Client(timeout=limits, trust_env=False) as client,
            client.stream(
                "POST", address.url + ADMIN_PATH.format(action=action), content=body, headers=headers
            ) as response,
        ):
            content = collect(response.iter_bytes())
    except BodyTooLarge:
        raise ReplicaCallFailed(f"{action}: the replica's answer is too long") from None
    except httpx.HTTPError as error:
        raise ReplicaCallFailed(f"{action}: the replica did not answer ({type(error).__name__})") from None
    if response.status_code != 200:
        raise ReplicaCallFailed(f"{action}: the replica answered {response.status_code}")
    try:
        return decode(content, answer_type)
    except ProtocolError:
        raise ReplicaCallFailed(f"{action}: the replica's answer is not what the protocol says") from None
