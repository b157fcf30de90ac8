"""The root key and the platform's own key pairs, unwrapped once per process and kept in memory.

After a key is rotated the processes must be restarted: they keep using what they loaded. Older public keys stay listed.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from marketplace.accounts.seals import root_key
from marketplace.vault.errors import NotBootstrapped
from marketplace.vault.models import PlatformKey
from protocol.encoding import encode_base64url
from protocol.proofs.keys import PublishedKey
from sealed_weights import PlatformKeypair

_lock = threading.Lock()
_loaded: dict[tuple[str, UUID], bytearray] = {}


def platform_key_context(purpose: str, key_id: UUID) -> dict[str, str]:
    """Return what binds a wrapped platform key to its row."""
    return {"purpose": f"platform-{purpose}", "id": str(key_id)}


@dataclass(frozen=True, slots=True)
class SigningPair:
    """An Ed25519 platform key: `kid` is the row's id."""

    kid: str
    private: Ed25519PrivateKey

    def public_bytes(self) -> bytes:
        """Return the 32-byte public key."""
        return self.private.public_key().public_bytes_raw()


def current_row(purpose: str) -> PlatformKey:
    """Return the newest unretired key of `purpose`; raises NotBootstrapped."""
    row = PlatformKey.objects.filter(purpose=purpose, retired_at__isnull=True).order_by("-created_at", "-id").first()
    if row is None:
        raise NotBootstrapped("the platform's keys do not exist yet: run `manage.py bootstrap_vault`")
    return row


def private_bytes(row: PlatformKey) -> bytearray:
    """Return a row's private key, unwrapped once per process. The caller must not change the bytes."""
    slot = (row.purpose, row.id)
    with _lock:
        if slot not in _loaded:
            context = platform_key_context(row.purpose, row.id)
            _loaded[slot] = root_key().unwrap(bytes(row.wrapped_private_key), context)
        return _loaded[slot]


def signing_pair(purpose: str) -> SigningPair:
    """Return the current ticket or vault signing key. Raises NotBootstrapped, or AuthenticationError if the root key is
    not the one that wrapped it."""
    row = current_row(purpose)
    return SigningPair(str(row.id), Ed25519PrivateKey.from_private_bytes(bytes(private_bytes(row))))


def intake_pairs() -> list[PlatformKeypair]:
    """Return the intake key pairs, newest first: a creator may have wrapped to one that is retired by now."""
    rows = PlatformKey.objects.filter(purpose=PlatformKey.Purpose.INTAKE).order_by("-created_at")
    return [PlatformKeypair.from_private_bytes(private_bytes(row)) for row in rows]


def intake_public_key() -> bytes:
    """Return the public key that creators wrap their data keys to (1,216 bytes); raises NotBootstrapped."""
    return bytes(current_row(PlatformKey.Purpose.INTAKE).public_key)


def vault_public_key() -> bytes:
    """Return the public key of leases and checkpoints (32 bytes); raises NotBootstrapped."""
    return bytes(current_row(PlatformKey.Purpose.VAULT).public_key)


def ticket_public_keys() -> dict[str, bytes]:
    """Return {kid: 32 bytes} of every ticket key that is not retired."""
    rows = PlatformKey.objects.filter(purpose=PlatformKey.Purpose.TICKET, retired_at__isnull=True)
    return {str(row.id): bytes(row.public_key) for row in rows}


def receipt_keys() -> tuple[PublishedKey, ...]:
    """Return every key that ever signed receipts, oldest first, with its time; raises NotBootstrapped if there is none.

    Times are whole seconds, widened to both sides: a signature names the second in which it was made.
    """
    rows = PlatformKey.objects.filter(purpose=PlatformKey.Purpose.RECEIPT).order_by("created_at", "id")
    found = tuple(
        PublishedKey(
            kid=str(row.id),
            public_key=encode_base64url(bytes(row.public_key)),
            valid_from=first_second(row),
            valid_until=math.ceil(row.retired_at.timestamp()) if row.retired_at else None,
            endorsed_by=str(row.endorsed_by_id) if row.endorsed_by_id else None,
            endorsement=encode_base64url(bytes(row.endorsement)) if row.endorsement else None,
        )
        for row in rows
    )
    if not found:
        current_row(PlatformKey.Purpose.RECEIPT)
    return found


def first_second(row: PlatformKey) -> int:
    """Return the unix second from which a key is valid."""
    return math.floor(row.created_at.timestamp())
