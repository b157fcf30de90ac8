"""Receipts: what a replica did for one prediction. EdDSA JWTs by its per-boot key; `kid` is the replica's id."""

from __future__ import annotations

import uuid
from typing import Annotated, Literal

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from jwt.types import Options

from protocol.errors import ProtocolError
from protocol.messages import Id

MAX_RECEIPT_BYTES = 4096
FinishReason = Literal["stop", "length", "cancelled", "interrupted", "revoked", "error"]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The claims. Token counts are exact; times are in milliseconds, `ttft_ms` is None if no token came.

    `adapter` is the package digest, None for the bare base, and `base` is the base model's fingerprint.
    """

    iss: Literal["replica"] = "replica"
    jti: Id
    iat: Count
    adapter: str | None
    base: str
    prompt_tokens: Count
    cached_tokens: Count
    completion_tokens: Count
    finish_reason: FinishReason
    ttft_ms: Count | None
    duration_ms: Count


class ReceiptRejected(ProtocolError):
    """A receipt does not prove what it should; the text says why."""


def sign_receipt(receipt: Receipt, private: Ed25519PrivateKey, *, replica_id: str) -> str:
    """Return the receipt as a JWT.

    `replica_id` is the id under which the prediction was accepted: the platform finds the public key by it, also after
    the replica registered anew.
    """
    return jwt.encode(msgspec.to_builtins(receipt), private, algorithm="EdDSA", headers={"kid": replica_id})


def receipt_replica_id(token: str) -> uuid.UUID:
    """Return the replica id that a receipt claims in its header; raises ReceiptRejected.

    It is not verified: use it to find the public key.
    """
    try:
        return uuid.UUID(str(jwt.get_unverified_header(token[:MAX_RECEIPT_BYTES]).get("kid")))
    except (jwt.InvalidTokenError, ValueError):
        raise ReceiptRejected("the receipt is not a signed token of a replica") from None


def verify_receipt(token: str, *, jti: uuid.UUID, replica_id: uuid.UUID, public_key: bytes) -> Receipt:
    """Verify the signature under `public_key` and that the receipt is of this replica for prediction `jti`.

    Token counts are not negative and the cached ones are part of the prompt. Raises ReceiptRejected.
    """
    if len(token) > MAX_RECEIPT_BYTES or receipt_replica_id(token) != replica_id:
        raise ReceiptRejected("the receipt is of another replica")
    unchecked: Options = {"verify_aud": False, "verify_iat": False, "verify_iss": False}
    try:
        key = Ed25519PublicKey.from_public_bytes(public_key)
        receipt = msgspec.convert(jwt.decode(token, key, algorithms=["EdDSA"], options=unchecked), Receipt)
    except (jwt.InvalidTokenError, msgspec.ValidationError, ValueError):
        raise ReceiptRejected("the receipt does not verify") from None
    if receipt.jti != str(jti):
        raise ReceiptRejected("the receipt is for another prediction")
    if receipt.cached_tokens > receipt.prompt_tokens:
        raise ReceiptRejected("the receipt has more cached tokens than prompt tokens")
    return receipt
