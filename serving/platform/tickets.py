"""Tickets: who may ask this replica for what, once, and with which body (docs/protocol.md).

The algorithm is pinned to EdDSA and the key comes from the vault by `kid`, so neither `alg: none` nor an HMAC "signed"
with the public key gets anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import hmac
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Annotated

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from serving.platform.errors import TicketRefused, TooManyTickets

MAX_TICKET_BYTES = 4096
MAX_REMEMBERED = 200_000  # about 30 MB; at 100 predictions a second, half an hour of tickets
CLOCK_SKEW_S = 30.0  # `iat` may be this far ahead of this machine's clock
MAX_LIFETIME_S = 24 * 3600.0  # a forgotten or silly `exp` may not fill the replay memory for ever
_HEADER = {"alg", "kid", "typ"}


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The verified claims. The last group is meaningful for `act == "predict"` alone."""

    iss: str
    aud: str
    act: str
    jti: str
    iat: int
    exp: int
    bh: str
    rid: str
    org: str | None = None
    adapter: str | None = None
    scope: str = ""
    max_prompt_tokens: int = 0
    max_tokens: int = 0
    weight: Annotated[float, msgspec.Meta(ge=0.01, le=100)] = 1.0


class TicketVerifier:
    """Verifies tickets and remembers the ones it accepted until they expire. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time, capacity: int = MAX_REMEMBERED) -> None:
        """Start with no identity: every ticket is refused until `adopt`."""
        self._clock, self._capacity = clock, capacity
        self._replica_id: str | None = None
        self._keys: dict[str, Ed25519PublicKey] = {}
        self._used: set[str] = set()
        self._by_expiry: list[tuple[int, str]] = []  # a heap
        self._lock = threading.Lock()

    def adopt(self, replica_id: str, keys: Mapping[str, bytes]) -> None:
        """Take the identity and the platform's ticket keys ({kid: 32 bytes}) that registration or a heartbeat gave."""
        loaded = {kid: Ed25519PublicKey.from_public_bytes(public) for kid, public in keys.items()}
        with self._lock:
            self._replica_id, self._keys = replica_id, loaded

    def verify(self, token: str | None, body: bytes, *, action: str) -> Ticket:
        """Check everything, then spend the ticket.

        Raises TicketRefused (the message says which check failed) or TooManyTickets.
        """
        ticket = self._read(token)
        if ticket.act != action:
            raise TicketRefused(f"the ticket allows {ticket.act!r}, not {action!r}")
        if not hmac.compare_digest(ticket.bh.encode(), body_hash(body).encode()):
            raise TicketRefused("the ticket is for another body")
        self._spend(ticket)
        return ticket

    def _read(self, token: str | None) -> Ticket:
        if not token or len(token) > MAX_TICKET_BYTES:
            raise TicketRefused("a ticket is required")
        with self._lock:
            replica_id, keys = self._replica_id, self._keys
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") != "EdDSA" or not set(header) <= _HEADER:
                raise TicketRefused("the ticket's algorithm is not EdDSA")
            key = keys.get(str(header.get("kid")))
            if key is None:
                raise TicketRefused("the ticket's key is not one of the platform's")
            # Times are checked below against this verifier's own clock, after the signature.
            claims = jwt.decode(token, key, algorithms=["EdDSA"], options={
                "verify_exp": False, "verify_iat": False, "verify_aud": False, "verify_iss": False,
            })  # fmt: skip
            ticket = msgspec.convert(claims, Ticket)
            uuid.UUID(ticket.jti)
        except (jwt.InvalidTokenError, msgspec.ValidationError, ValueError):
            raise TicketRefused("the ticket does not verify") from None
        now = self._clock()
        if ticket.iss != "intarsia" or ticket.aud != "serving":
            raise TicketRefused("the ticket is not from the platform to a replica")
        if ticket.rid != replica_id:
            raise TicketRefused("the ticket is for another replica")
        if ticket.exp <= now:
            raise TicketRefused("the ticket has expired")
        if ticket.iat > now + CLOCK_SKEW_S or ticket.exp - now > MAX_LIFETIME_S:
            raise TicketRefused("the ticket's times are not believable")
        return ticket

    def _spend(self, ticket: Ticket) -> None:
        now = self._clock()
        with self._lock:
            while self._by_expiry and self._by_expiry[0][0] <= now:
                self._used.discard(heapq.heappop(self._by_expiry)[1])
            if ticket.jti in self._used:
                raise TicketRefused("the ticket was used before")
            if len(self._used) >= self._capacity:
                raise TooManyTickets("too many unexpired tickets; try another replica")
            self._used.add(ticket.jti)
            heapq.heappush(self._by_expiry, (ticket.exp, ticket.jti))


def body_hash(body: bytes) -> str:
    """Return base64url(SHA-256(body)) without padding: the `bh` claim."""
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
