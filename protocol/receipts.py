"""Receipts: what a replica did for one attempt of a prediction. EdDSA JWTs by its per-boot key; `kid` is its signer.

`verify_receipt` is the only judge of receipts: gateway, sweeper and audit believe one as far as the ticket went.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocol import jws
from protocol.contracts import MAX_CLOSED_ANSWERS
from protocol.encoding import decode_base64url
from protocol.errors import ProtocolError
from protocol.latency import LatencyClass
from protocol.messages import Attempt, Id

MAX_RECEIPT_BYTES = 4096
FinishReason = Literal["stop", "length", "budget", "cancelled", "interrupted", "revoked", "error"]
ToolArguments = Literal["valid", "invalid"]
AnswerIndex = Annotated[int, msgspec.Meta(ge=0, lt=MAX_CLOSED_ANSWERS)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Rule = Literal[
    "malformed",
    "signer",
    "signature",
    "prediction",
    "attempt",
    "replica",
    "adapter",
    "base",
    "latency_class",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "times",
]
INTERRUPTED: Final = "interrupted"  # the only outcome that a later boot signs for an earlier one


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The claims. Token counts are exact; times are in milliseconds, `ttft_ms` is None if no token came.

    `replica_id` is the id that the ticket named, `adapter` the package digest or None for the bare base, and `base` the
    base model's fingerprint. `answer` is the answer's place in its contract's closed set (`closed_answers`): a receipt
    of several choices, of an answer that did not end by itself, or under another contract, has none.

    `queue_ms` is the wait until the engine took the first completion up, a part of `ttft_ms`. `tool_arguments` says
    whether the arguments of all calls of functions in an answer of one choice follow their functions' schemas: nothing
    else of what was said. A receipt without calls, or of a replica that could not tell, has none.

    `returned_tokens` are the tokens of the completions that were returned, where more were computed to find them: the
    best of several, or of a beam search. `completion_tokens` are those that were computed.
    """

    iss: Literal["replica"] = "replica"
    jti: Id
    attempt: Attempt
    replica_id: Id
    iat: Count
    adapter: str | None
    base: str
    prompt_tokens: Count
    cached_tokens: Count
    completion_tokens: Count
    finish_reason: FinishReason
    ttft_ms: Count | None
    duration_ms: Count
    latency_class: LatencyClass = "standard"  # receipts before version 4 of the protocol name none
    answer: AnswerIndex | msgspec.UnsetType = msgspec.UNSET
    queue_ms: Count | msgspec.UnsetType = msgspec.UNSET
    tool_arguments: ToolArguments | msgspec.UnsetType = msgspec.UNSET
    returned_tokens: Count | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class Grant:
    """The grant of one attempt's ticket, and so the most that its receipt may claim."""

    prediction_id: uuid.UUID
    attempt: int
    replica_id: uuid.UUID
    adapter: str | None  # package digest; None is the bare base
    base: str  # fingerprint of the base model
    max_prompt_tokens: int
    max_tokens: int
    latency_class: LatencyClass


class ReceiptRejected(ProtocolError):
    """A receipt does not prove what it should: `rule` names the rule that it breaks, the text says how."""

    def __init__(self, rule: Rule, message: str) -> None:
        super().__init__(message)
        self.rule: Rule = rule


def sign_receipt(receipt: Receipt, private: Ed25519PrivateKey, *, signer_id: str) -> str:
    """Return the receipt as a JWT. `signer_id` is a replica id under which the platform knows the signing key."""
    return jws.sign(msgspec.json.encode(receipt), private, kid=signer_id)


def receipt_replica_id(token: str) -> uuid.UUID:
    """Return the replica id that a receipt claims in its header; raises ReceiptRejected.

    It is not verified: use it to find the public key.
    """
    try:
        return uuid.UUID(jws.key_id(token[:MAX_RECEIPT_BYTES]))
    except (jws.Unsigned, ValueError):
        raise ReceiptRejected("malformed", "the receipt is not a signed token of a replica") from None


def claims_of(token: str) -> Receipt:
    """Return the claims of a receipt from the books, which was judged when it came; raises ReceiptRejected.

    The signature is not verified again.
    """
    try:
        return msgspec.json.decode(decode_base64url(token.split(".")[1]), type=Receipt)
    except (IndexError, ProtocolError, ValueError, msgspec.DecodeError) as error:
        raise ReceiptRejected("malformed", f"the receipt is malformed: {error}") from None


def read_receipt(token: str, keys: Mapping[uuid.UUID, bytes]) -> Receipt:
    """Verify the signature under one of the public keys (by replica id) and the form; raises ReceiptRejected.

    It says who signed, not whether the claims are within a grant: `verify_receipt` does.
    """
    if len(token) > MAX_RECEIPT_BYTES:
        raise ReceiptRejected("malformed", f"a receipt has at most {MAX_RECEIPT_BYTES} bytes")
    public_key = keys.get(receipt_replica_id(token))
    if public_key is None:
        raise ReceiptRejected("signer", "the receipt is signed by a replica that had no part in the prediction")
    try:
        claims = jws.verified(token, Ed25519PublicKey.from_public_bytes(public_key))
    except (jws.Unsigned, ValueError):
        raise ReceiptRejected("signature", "the receipt's signature does not verify") from None
    try:
        return msgspec.json.decode(claims, type=Receipt)
    except msgspec.DecodeError as error:
        raise ReceiptRejected("malformed", f"the receipt is malformed: {error}") from None


def verify_receipt(token: str, grant: Grant, keys: Mapping[uuid.UUID, bytes]) -> Receipt:
    """Return the receipt if it is of this grant and within it; raises ReceiptRejected.

    `keys` are the public receipt keys of the boots that may sign, by replica id: the dispatched boot any receipt, later
    boots of the same replica name only what a crash interrupted.
    """
    receipt = read_receipt(token, keys)
    if receipt_replica_id(token) != grant.replica_id and receipt.finish_reason != INTERRUPTED:
        raise ReceiptRejected("signer", "a later boot signs only what a crash interrupted")
    same: list[tuple[Rule, object, object]] = [
        ("prediction", receipt.jti, str(grant.prediction_id)),
        ("attempt", receipt.attempt, grant.attempt),
        ("replica", receipt.replica_id, str(grant.replica_id)),
        ("adapter", receipt.adapter, grant.adapter),
        ("base", receipt.base, grant.base),
        ("latency_class", receipt.latency_class, grant.latency_class),
    ]
    for rule, claimed, granted in same:
        if claimed != granted:
            raise ReceiptRejected(rule, f"the receipt is of {rule} {claimed}, the ticket was of {granted}")
    bounded: list[tuple[Rule, int, int]] = [
        ("prompt_tokens", receipt.prompt_tokens, grant.max_prompt_tokens),
        ("completion_tokens", receipt.completion_tokens, grant.max_tokens),
        ("cached_tokens", receipt.cached_tokens, receipt.prompt_tokens),
    ]
    for rule, claimed_count, most in bounded:
        if claimed_count > most:
            raise ReceiptRejected(rule, f"the receipt claims {claimed_count} {rule}, at most {most} are possible")
    if receipt.ttft_ms is not None and receipt.ttft_ms > receipt.duration_ms:
        raise ReceiptRejected("times", "the receipt's first token came after its end")
    if receipt.queue_ms is not msgspec.UNSET and receipt.queue_ms > receipt.duration_ms:
        raise ReceiptRejected("times", "the receipt waited longer than it took")
    return receipt
