"""Tickets (docs/protocol.md). `load_ticket_signer` reads the database once; the signer it returns never does again, so
the gateway loads one at start and signs on its event loop."""

from __future__ import annotations

import base64
import hashlib
import time
import uuid
from collections.abc import Mapping
from typing import Any

import jwt

from marketplace.vault.keys import SigningPair, signing_pair
from marketplace.vault.models import PlatformKey

ADMIN_TICKET_SECONDS = 60


class TicketSigner:
    """Signs tickets with the platform's ticket key, held in memory."""

    def __init__(self, pair: SigningPair) -> None:
        """Hold the key pair."""
        self._pair = pair

    @property
    def kid(self) -> str:
        """Return the key's id."""
        return self._pair.kid

    def sign(self, claims: Mapping[str, Any]) -> str:
        """Return the ticket as a JWT; `iss` and `aud` are added. About 60 µs, no I/O."""
        full = {"iss": "intarsia", "aud": "serving", **claims}
        return jwt.encode(full, self._pair.private, algorithm="EdDSA", headers={"kid": self._pair.kid})

    def sign_admin(self, *, action: str, replica_id: uuid.UUID, body: bytes) -> str:
        """Return a ticket for one administrative call with exactly this body."""
        now = int(time.time())
        return self.sign({
            "act": action, "jti": str(uuid.uuid4()), "iat": now, "exp": now + ADMIN_TICKET_SECONDS,
            "bh": body_hash(body), "rid": str(replica_id),
        })  # fmt: skip


def body_hash(body: bytes) -> str:
    """Return base64url(SHA-256(body)) without padding: the `bh` claim."""
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()


def load_ticket_signer() -> TicketSigner:
    """Load the current ticket key (reads the database: call it outside an event loop). Raises NotBootstrapped."""
    return TicketSigner(signing_pair(PlatformKey.Purpose.TICKET))
