"""Receipts from replicas, checked before a nano-dollar moves (docs/protocol.md). Pure: the caller brings the public
key."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from marketplace.vault.errors import ReceiptRefused

MAX_RECEIPT_BYTES = 4096
FinishReason = Literal["stop", "length", "cancelled", "interrupted", "revoked", "error"]


class Receipt(msgspec.Struct, frozen=True):
    """What a replica says it did for one prediction."""

    iss: Literal["replica"]
    jti: UUID
    adapter: str | None
    base: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: FinishReason
    ttft_ms: int | None
    duration_ms: int
    iat: int


def receipt_replica_id(token: str) -> UUID:
    """Return the replica id a receipt claims in its header (unverified: use it to find the public key). Raises
    ReceiptRefused."""
    try:
        return UUID(str(jwt.get_unverified_header(token[:MAX_RECEIPT_BYTES]).get("kid")))
    except (jwt.InvalidTokenError, ValueError):
        raise ReceiptRefused("the receipt is not a signed token of a replica") from None


def verify_receipt(token: str, *, jti: UUID, replica_id: UUID, public_key: bytes) -> Receipt:
    """Verify the signature under `public_key` and that the receipt is of this replica for prediction `jti`.

    Token counts come back sane (not negative, cached within prompt). Raises ReceiptRefused.
    """
    if len(token) > MAX_RECEIPT_BYTES or receipt_replica_id(token) != replica_id:
        raise ReceiptRefused("the receipt is of another replica")
    try:
        claims = jwt.decode(token, Ed25519PublicKey.from_public_bytes(public_key), algorithms=["EdDSA"], options={
            "verify_aud": False, "verify_iat": False, "verify_iss": False,
        })  # fmt: skip
        receipt = msgspec.convert(claims, Receipt)
    except (jwt.InvalidTokenError, msgspec.ValidationError, ValueError):
        raise ReceiptRefused("the receipt does not verify") from None
    if receipt.jti != jti:
        raise ReceiptRefused("the receipt is for another prediction")
    if min(receipt.prompt_tokens, receipt.cached_tokens, receipt.completion_tokens, receipt.duration_ms) < 0:
        raise ReceiptRefused("the receipt has negative figures")
    if receipt.cached_tokens > receipt.prompt_tokens:
        raise ReceiptRefused("the receipt has more cached tokens than prompt tokens")
    return receipt
