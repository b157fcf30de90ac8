"""Verification of tickets against the platform's keys; each ticket is spent once (docs/protocol.md)."""

from __future__ import annotations

import heapq
import hmac
import threading
import time
from collections.abc import Callable, Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from protocol.encoding import body_sha256
from protocol.tickets import Action, Ticket, TicketRejected, read_ticket
from serving.platform.errors import TicketRefused, TooManyTickets

MAX_REMEMBERED = 200_000  # about 30 MB; at 100 predictions per second, half an hour of tickets


class TicketVerifier:
    """A verifier that remembers accepted tickets until they expire. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time, capacity: int = MAX_REMEMBERED) -> None:
        """Start with no identity: every ticket is refused until `adopt`."""
        self._clock = clock
        self._capacity = capacity
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

    def verify(self, token: str | None, body: bytes, *, action: Action) -> Ticket:
        """Check everything, then spend the ticket.

        Raises TicketRefused (the message says which check failed) or TooManyTickets.
        """
        with self._lock:
            replica_id, keys = self._replica_id, self._keys
        try:
            ticket = read_ticket(token, keys, replica_id=replica_id, now=self._clock())
        except TicketRejected as error:
            raise TicketRefused(str(error)) from None
        if ticket.action != action:
            raise TicketRefused(f"the ticket allows {ticket.action!r}, not {action!r}")
        if not hmac.compare_digest(ticket.body_sha256, body_sha256(body)):
            raise TicketRefused("the ticket is for another body")
        self._spend(ticket)
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
