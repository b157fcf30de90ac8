"""KV blocks from replica to replica (docs/prefill-decode.md): the ticket of a pull, and the request that shows it.

`POST PULL_PATH` and `CHAIN_PATH` over TLS 1.3, on a port of its own. The answer of a pull is the raw KV of the asked
blocks, one after the other, up to the first that the source does not have. The source's certificate is signed by the
receipt key of its boot; the reader signs each request with its own. Both keys stand in the ticket, so that no other
machine can take either part.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocol import jws
from protocol.errors import ProtocolError
from protocol.messages import Answer, Attempt, Bytes32, Bytes64, Digest, Id, Request, Token
from protocol.tickets import CLOCK_SKEW_S, ISSUER, MAX_TICKET_BYTES
from protocol.version import PROTOCOL_VERSION, require_version

PULL_HEADER = "x-intarsia-pull"  # of a prediction whose prompt another replica has computed
PULL_PATH = "/kv/pull"
CHAIN_PATH = "/kv/chain"
MAX_CHAIN_BYTES = 1 << 20
PULL_TICKET_SECONDS = 30
MAX_PULL_KEYS = 8192
MAX_PULL_REQUEST_BYTES = 1 << 19
BLOCKS_HEADER = "x-intarsia-blocks"  # how many blocks an answer begins with the intention to send

Role = Literal["both", "prefill", "decode"]
PullUrl = Annotated[str, msgspec.Meta(pattern=r"^(https://[!-~]{1,190})?\Z")]  # empty: no KV is pulled there
_AUDIENCE: Final = "kv"
_PROOF_DOMAIN = b"intarsia/kv-pull/v1"


class PullTicket(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The claims: `reader_id` may pull from `source_id` what belongs to this scope and adapter, once.

    jti, attempt: of the prediction, or an id of its own for the conversations that a draining replica hands over
    source_key, reader_key: the receipt keys of both boots, in base64url
    """

    iss: Literal["intarsia"] = ISSUER
    aud: Literal["kv"] = _AUDIENCE
    jti: Id
    attempt: Attempt
    iat: int
    exp: int
    protocol_version: int
    source_id: Id
    source_url: PullUrl
    source_key: Bytes32
    reader_id: Id
    reader_key: Bytes32
    adapter: Digest | None
    cache_scope: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class PullRequest(Request, frozen=True):
    """What a reader asks of a source. `layout` stands for everything that the bytes of a block depend on."""

    ticket: Token
    proof: Bytes64
    layout: Digest
    keys: Annotated[list[Bytes32], msgspec.Meta(min_length=1, max_length=MAX_PULL_KEYS)]


class ChainRequest(Request, frozen=True):
    """What a reader asks before it pulls a conversation that it does not know: the tokens up to the block of `key`."""

    ticket: Token
    proof: Bytes64
    layout: Digest
    key: Bytes32


class Chain(Answer, frozen=True):
    """The tokens of a conversation's blocks. The reader makes the keys itself: a chain that does not end with the key
    that it asked for is refused.

    shared_tokens: leading ones that come from the adapter's contract alone
    """

    tokens: list[int]
    shared_tokens: int


class PullRejected(ProtocolError):
    """The ticket of a pull is missing, forged, expired, or of another replica; the text says which."""


def pull_ticket(
    *,
    jti: uuid.UUID,
    attempt: int,
    source_id: uuid.UUID,
    source_url: str,
    source_key: str,
    reader_id: uuid.UUID,
    reader_key: str,
    adapter: str | None,
    cache_scope: str,
) -> PullTicket:
    """Return the claims of a pull that begins now; good for half a minute."""
    now = int(time.time())
    return PullTicket(
        jti=str(jti),
        attempt=attempt,
        iat=now,
        exp=now + PULL_TICKET_SECONDS,
        protocol_version=PROTOCOL_VERSION,
        source_id=str(source_id),
        source_url=source_url,
        source_key=source_key,
        reader_id=str(reader_id),
        reader_key=reader_key,
        adapter=adapter,
        cache_scope=cache_scope,
    )


def sign_pull_ticket(ticket: PullTicket, private: Ed25519PrivateKey, *, kid: str) -> str:
    """Return the ticket as a JWT."""
    return jws.sign(msgspec.json.encode(ticket), private, kid=kid)


def read_pull_ticket(
    token: str | None,
    keys: Mapping[str, Ed25519PublicKey],
    *,
    now: float,
    source_id: str | None = None,
    reader_id: str | None = None,
) -> PullTicket:
    """Verify signature, claims, version, times, and the one of the two replicas that reads it; raises PullRejected.

    keys: the platform's by `kid`; now: unix seconds
    """
    if not token or len(token) > MAX_TICKET_BYTES:
        raise PullRejected("a ticket is required")
    try:
        key = keys.get(jws.key_id(token))
        if key is None:
            raise PullRejected("the ticket's key is not one of the platform's")
        ticket = msgspec.json.decode(jws.verified(token, key), type=PullTicket)
        require_version(ticket.protocol_version, sender="the platform", receiver="this replica")
    except PullRejected:
        raise
    except (ProtocolError, msgspec.MsgspecError, ValueError) as error:
        raise PullRejected(f"the ticket does not verify: {error}") from None
    if source_id != ticket.source_id and reader_id != ticket.reader_id:
        raise PullRejected("the ticket is for other replicas")
    if ticket.exp <= now:
        raise PullRejected("the ticket has expired")
    if ticket.iat > now + CLOCK_SKEW_S or ticket.exp - ticket.iat > PULL_TICKET_SECONDS:
        raise PullRejected("the ticket's times are not believable")
    return ticket


def pull_proof(token: str, certificate: bytes) -> bytes:
    """Return what a reader signs with its receipt key: it asks with this ticket, over TLS with this certificate (DER).

    A source that is shown the proof can use it nowhere else.
    """
    return _PROOF_DOMAIN + hashlib.sha256(token.encode()).digest() + hashlib.sha256(certificate).digest()
