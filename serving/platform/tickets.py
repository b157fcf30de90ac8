"""Verification of tickets against the platform's keys; each ticket is spent once (docs/protocol.md)."""

from __future__ import annotations

import heapq
import hmac
import threading
import time
from collections.abc import Callable, Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from protocol.encoding import body_sha256
from protocol.pulls import PullRejected, PullTicket, read_pull_ticket
from protocol.tickets import CLOCK_SKEW_S, Action, Ticket, TicketRejected, read_ticket
from serving.platform.errors import TicketRefused, TooManyTickets

# A ticket is signed as it is sent: one that comes later was kept by somebody. So a prediction may take until its
# deadline, and its ticket has to be remembered for a minute and a half.
PRESENTED_WITHIN_S = 60.0 + CLOCK_SKEW_S
VOID_SECONDS = 2 * PRESENTED_WITHIN_S  # longer than a ticket is good
MAX_REMEMBERED = 200_000  # about 30 MB; 2,200 tickets per second


class TicketVerifier:
    """A verifier that remembers accepted tickets until they expire. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time, capacity: int = MAX_REMEMBERED) -> None:
        """Start with no identity: every ticket is refused until `adopt`."""
        self._clock = clock
        self._capacity = capacity
        self._replica_id: str | None = None
        self._keys: dict[str, Ed25519PublicKey] = {}
        self._used: set[str] = set()
        self._by_expiry: list[tuple[float, str]] = []  # a heap
        # The latest expiry of a forgotten ticket: when the clock steps back, tickets up to it are still over.
        self._forgotten = 0.0
        self._lock = threading.Lock()

    def adopt(self, replica_id: str, keys: Mapping[str, bytes]) -> None:
        """Take the identity and the platform's ticket keys ({kid: 32 bytes}) that registration or a heartbeat gave."""
        loaded = {kid: Ed25519PublicKey.from_public_bytes(public) for kid, public in keys.items()}
        with self._lock:
            self._replica_id, self._keys = replica_id, loaded

    def verify(self, token: str | None, body: bytes, *, action: Action) -> Ticket:
        """Check everything, then spend the ticket; `prefill` of one prediction is another use than `predict`.

        Raises TicketRefused (the message says which check failed) or TooManyTickets.
        """
        with self._lock:
            replica_id, keys = self._replica_id, self._keys
        try:
            ticket = read_ticket(token, keys, replica_id=replica_id, now=self._now())
        except TicketRejected as error:
            raise TicketRefused(str(error)) from None
        if ticket.action != action:
            raise TicketRefused(f"the ticket allows {ticket.action!r}, not {action!r}")
        if not hmac.compare_digest(ticket.body_sha256, body_sha256(body)):
            raise TicketRefused("the ticket is for another body")
        # A prompt alone is a use of its own: the whole prediction may come here after all.
        use = f"prefill:{ticket.jti}" if action == "prefill" else ticket.jti
        self._spend(use, min(ticket.exp, ticket.iat + PRESENTED_WITHIN_S))
        return ticket

    def verify_pull(self, token: str | None, *, lends: str | None = None) -> PullTicket:
        """Check the ticket of a pull.

        lends: this replica is its source, and spends it for this use: once for a pull, once for a chain before it;
            None: this replica is its reader

        Raises TicketRefused or TooManyTickets.
        """
        with self._lock:
            replica_id, keys = self._replica_id, self._keys
        side = {"reader_id" if lends is None else "source_id": replica_id}
        try:
            ticket = read_pull_ticket(token, keys, now=self._now(), **side)
        except PullRejected as error:
            raise TicketRefused(str(error)) from None
        if lends is not None:
            self._spend(f"{lends}:{ticket.jti}:{ticket.attempt}:{ticket.reader_id}", ticket.exp)
        return ticket

    def void(self, jti: str) -> None:
        """Refuse the ticket of a prediction that was cancelled before it came. Does nothing for a spent ticket."""
        with self._lock:
            if jti not in self._used and len(self._used) < self._capacity:
                self._remember(jti, self._clock() + VOID_SECONDS)

    def _now(self) -> float:
        """Return unix seconds that never step back behind a ticket that was forgotten."""
        return max(self._clock(), self._forgotten)

    def _spend(self, jti: str, good_until: float) -> None:
        with self._lock:
            now = self._now()
            while self._by_expiry and self._by_expiry[0][0] <= now:
                expiry, forgotten = heapq.heappop(self._by_expiry)
                self._used.discard(forgotten)
                self._forgotten = max(self._forgotten, expiry)
            if jti in self._used:
                raise TicketRefused("the ticket was used before")
            if good_until <= now:  # `now` is never before a ticket that was forgotten
                raise TicketRefused("the ticket has expired")
            if len(self._used) >= self._capacity:
                raise TooManyTickets("too many unexpired tickets; try another replica")
            self._remember(jti, good_until)

    def _remember(self, jti: str, expiry: float) -> None:
        self._used.add(jti)
        heapq.heappush(self._by_expiry, (expiry, jti))
