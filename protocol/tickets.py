"""Tickets: who may ask which replica for what, once, and with which body. EdDSA JWTs (RFC 8037).

The key comes from the reader by `kid`. Spending a ticket once is the replica's affair.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocol import jws
from protocol.encoding import body_sha256
from protocol.errors import ProtocolError
from protocol.latency import LatencyClass
from protocol.messages import Attempt, Bytes32, Digest, Id
from protocol.version import PROTOCOL_VERSION, UNVERSIONED, require_version

TICKET_HEADER = "x-intarsia-ticket"
MAX_TICKET_BYTES = 4096
ISSUER: Final = "intarsia"
AUDIENCE: Final = "serving"
ADMIN_TICKET_SECONDS = 60
CLOCK_SKEW_S = 30.0  # `iat` may be this far ahead of the reader's clock
MAX_LIFETIME_S = 24 * 3600.0  # a forgotten or absurd `exp` may not fill a replay memory for ever

Action = Literal[
    "predict",
    "prefill",
    "verify",
    "revoke",
    "prefetch",
    "forget",
    "cancel",
    "journal",
    "stats",
    "drain",
    "conversations",
    "pull",
]


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The claims. The last group is meaningful for the actions `predict` and `prefill` alone."""

    iss: Literal["intarsia"]
    aud: Literal["serving"]
    jti: Id
    iat: int
    exp: int
    protocol_version: int
    action: Action
    replica_id: Id
    body_sha256: Bytes32

    attempt: Attempt = 1
    organization_id: Id | None = None
    adapter: Digest | None = None
    cache_scope: Annotated[str, msgspec.Meta(max_length=100)] = ""
    max_prompt_tokens: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    max_tokens: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    weight: Annotated[float, msgspec.Meta(ge=0.01, le=100)] = 1.0
    latency_class: LatencyClass = "standard"
    stop_at_grant: bool = False
    contract: Digest | None = None
    teaches: bool = False
    cached_tokens: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] | None = None
    conversation: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{16})?\Z")] = ""


class TicketRejected(ProtocolError):
    """The ticket is missing, forged, expired, or for another replica, action or body; the text says which."""


def prediction_ticket(
    *,
    prediction_id: uuid.UUID,
    attempt: int,
    replica_id: uuid.UUID,
    organization_id: uuid.UUID,
    adapter: str | None,
    body: bytes,
    deadline: float,
    max_prompt_tokens: int,
    max_tokens: int,
    latency_class: LatencyClass,
    stop_at_grant: bool,
    contract: str | None = None,
    teaches: bool = False,
    action: Literal["predict", "prefill"] = "predict",
    cached_tokens: int | None = None,
    conversation: int | None = None,
) -> Ticket:
    """Return the claims of one prediction. `deadline` is in unix seconds, `adapter` a package digest or None.

    stop_at_grant: `max_tokens` may be less than the body asks for; an answer that ends there says "budget"
    contract: the package whose contract the bare base follows; an adapter follows its own
    teaches: the platform's own call, which tells nothing of any tenant: every scope's drafts may come from its answer
    cached_tokens: the prompt was computed by another replica, which had so many of its tokens before: at least as many
        count as cached, wherever the KV then comes from; None: it was not
    action: `prefill` has the prompt alone computed, for another replica to pull; `max_tokens` is then 0
    conversation: 64 bits for what the turns of a conversation share; the replica tells by them whose KV it holds

    The cache scope is the organization: one tenant's cached prefixes are never visible to another, not even as timing.
    """
    return Ticket(
        iss=ISSUER,
        aud=AUDIENCE,
        jti=str(prediction_id),
        iat=int(time.time()),
        exp=int(deadline),
        protocol_version=PROTOCOL_VERSION,
        action=action,
        replica_id=str(replica_id),
        body_sha256=body_sha256(body),
        attempt=attempt,
        organization_id=str(organization_id),
        adapter=adapter,
        cache_scope=str(organization_id),
        max_prompt_tokens=max_prompt_tokens,
        max_tokens=max_tokens,
        latency_class=latency_class,
        stop_at_grant=stop_at_grant,
        contract=contract,
        teaches=teaches,
        cached_tokens=cached_tokens,
        conversation="" if conversation is None else f"{conversation:016x}",
    )


def admin_ticket(*, action: Action, replica_id: uuid.UUID, body: bytes) -> Ticket:
    """Return the claims of one administrative call with exactly this body; good for a minute."""
    now = int(time.time())
    return Ticket(
        iss=ISSUER,
        aud=AUDIENCE,
        jti=str(uuid.uuid4()),
        iat=now,
        exp=now + ADMIN_TICKET_SECONDS,
        protocol_version=PROTOCOL_VERSION,
        action=action,
        replica_id=str(replica_id),
        body_sha256=body_sha256(body),
    )


def sign_ticket(ticket: Ticket, private: Ed25519PrivateKey, *, kid: str) -> str:
    """Return the ticket as a JWT. About 45 µs, no I/O."""
    return jws.sign(msgspec.json.encode(ticket), private, kid=kid)


def read_ticket(
    token: str | None, keys: Mapping[str, Ed25519PublicKey], *, replica_id: str | None, now: float
) -> Ticket:
    """Verify signature, claims, version, replica and times; raises TicketRejected.

    `keys` are the platform's by `kid`, `replica_id` is the reader's own, `now` is in unix seconds.
    """
    if not token or len(token) > MAX_TICKET_BYTES:
        raise TicketRejected("a ticket is required")
    ticket = _verified(token, keys)
    if ticket.replica_id != replica_id:
        raise TicketRejected("the ticket is for another replica")
    if ticket.exp <= now:
        raise TicketRejected("the ticket has expired")
    if ticket.iat > now + CLOCK_SKEW_S or ticket.exp - now > MAX_LIFETIME_S:
        raise TicketRejected("the ticket's times are not believable")
    if ticket.adapter is not None and ticket.contract is not None:
        raise TicketRejected("an adapter follows the contract of its own package")
    return ticket


def _verified(token: str, keys: Mapping[str, Ed25519PublicKey]) -> Ticket:
    try:
        key = keys.get(jws.key_id(token))
        if key is None:
            raise TicketRejected("the ticket's key is not one of the platform's")
        claims = msgspec.json.decode(jws.verified(token, key))
        if not isinstance(claims, dict):
            raise TicketRejected("the ticket has no claims")
        if claims.get("iss") != ISSUER or claims.get("aud") != AUDIENCE:
            raise TicketRejected("the ticket is not from the platform to a replica")
        version = claims.get("protocol_version", UNVERSIONED)
        if type(version) is int:
            require_version(version, sender="the platform", receiver="this replica")
        return msgspec.convert(claims, Ticket)
    except TicketRejected:
        raise
    except ProtocolError as error:
        raise TicketRejected(str(error)) from None
    except (msgspec.MsgspecError, ValueError):
        raise TicketRejected("the ticket does not verify") from None
