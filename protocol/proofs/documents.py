"""Receipt documents: a charge with everything that an offline check of it needs, and that check."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from protocol.encoding import decode_base64url
from protocol.messages import Bytes32
from protocol.proofs.charges import Charge, Correction, DayHead, check_sum
from protocol.proofs.errors import ProofRejected
from protocol.proofs.keys import KeyFile
from protocol.proofs.merkle import leaf_hash, proves_inclusion
from protocol.proofs.signed import MAX_STATEMENT_BYTES, Signed, read_statement
from protocol.receipts import Count, Grant, Receipt, ReceiptRejected, verify_receipt

DOCUMENT_FORMAT: Final = "intarsia/receipt/v1"
MAX_DOCUMENT_BYTES = 1 << 18
Statement = Annotated[str, msgspec.Meta(max_length=MAX_STATEMENT_BYTES)]
Payload = TypeVar("Payload", bound=msgspec.Struct)


class Inclusion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The place of a charge in its day's tree: leaf `index` of the tree of `head`, with the path to its root."""

    head: Statement
    index: Count
    path: Annotated[tuple[Bytes32, ...], msgspec.Meta(max_length=64)]


class ReceiptDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file. `inclusion` is null until a head that covers the charge is published."""

    format: Literal["intarsia/receipt/v1"]
    platform: Annotated[str, msgspec.Meta(max_length=300)]
    charge: Statement
    corrections: Annotated[tuple[Statement, ...], msgspec.Meta(max_length=100)]
    inclusion: Inclusion | None


@dataclass(frozen=True, slots=True)
class VerifiedReceipt:
    """The facts that a document proves. `head` is None if it holds no proof of inclusion."""

    charge: Charge
    signed: Signed
    replica_receipt: Receipt
    corrections: tuple[Correction, ...]
    head: DayHead | None
    head_hash: bytes | None

    @property
    def charged_nano_usd(self) -> int:
        """Return the cost less what was given back."""
        return self.charge.cost_nano_usd - sum(one.amount_nano_usd for one in self.corrections)


def verify_document(data: bytes, keys: KeyFile) -> VerifiedReceipt:
    """Check a receipt document with a key file and nothing else; raises ProofRejected naming the first broken rule.

    The platform signed the charge with a key that was valid then; tokens, price, class, allowance and split make cost
    and shares; the replica signed a receipt within the ticket's grant that covers the tokens charged; corrections are
    signed and not more than the cost; the charge is in the tree whose root the platform signed, if a proof is there.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise ProofRejected("malformed", f"a receipt has at most {MAX_DOCUMENT_BYTES} bytes")
    try:
        document = msgspec.json.decode(data, type=ReceiptDocument)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProofRejected("malformed", f"this is no receipt: {error}") from None
    signed = read_statement(document.charge, keys, "intarsia-charge")
    charge = _payload(signed, Charge)
    check_sum(charge)
    receipt = _check_replica(charge)
    corrections = tuple(_correction(token, keys, charge) for token in document.corrections)
    if len({one.correction for one in corrections}) != len(corrections):
        raise ProofRejected("corrections", "a correction is there twice")
    if sum(one.amount_nano_usd for one in corrections) > charge.cost_nano_usd:
        raise ProofRejected("corrections", "more was given back than was charged")
    head = head_hash = None
    if document.inclusion is not None:
        signed_head = read_statement(document.inclusion.head, keys, "intarsia-day")
        head, head_hash = _payload(signed_head, DayHead), hashlib.sha256(signed_head.payload).digest()
        path = [decode_base64url(sibling) for sibling in document.inclusion.path]
        root, leaf = decode_base64url(head.root), leaf_hash(signed.payload)
        if not proves_inclusion(leaf, document.inclusion.index, head.size, path, root):
            raise ProofRejected("inclusion", f"the charge is not shown to be in the tree of {head.day}")
    return VerifiedReceipt(charge, signed, receipt, corrections, head, head_hash)


def _check_replica(charge: Charge) -> Receipt:
    if charge.signer_id is None or charge.signer_key is None:
        raise ProofRejected("signer", "the platform does not vouch for the replica's key")
    grant = Grant(
        prediction_id=uuid.UUID(charge.prediction_id),
        attempt=charge.attempt,
        replica_id=uuid.UUID(charge.replica_id),
        adapter=charge.adapter,
        base=charge.base,
        max_prompt_tokens=charge.max_prompt_tokens,
        max_tokens=charge.max_completion_tokens,
        latency_class=charge.latency_class,
    )
    keys = {uuid.UUID(charge.signer_id): decode_base64url(charge.signer_key)}
    try:
        receipt = verify_receipt(charge.replica_receipt, grant, keys)
    except ReceiptRejected as rejection:
        raise ProofRejected(rejection.rule, f"the replica's receipt: {rejection}") from None
    counted = (receipt.prompt_tokens, receipt.cached_tokens)
    if counted != (charge.prompt_tokens, charge.cached_tokens) or charge.completion_tokens > receipt.completion_tokens:
        raise ProofRejected("tokens", "other tokens were charged than the replica's receipt says")
    return receipt


def _correction(token: str, keys: KeyFile, charge: Charge) -> Correction:
    found = _payload(read_statement(token, keys, "intarsia-correction"), Correction)
    if found.prediction_id != charge.prediction_id:
        raise ProofRejected("corrections", "a correction is of another prediction")
    return found


def read_head(token: str, keys: KeyFile) -> tuple[DayHead, bytes]:
    """Return a signed head and the hash that its successor names; raises ProofRejected."""
    signed = read_statement(token, keys, "intarsia-day")
    return _payload(signed, DayHead), hashlib.sha256(signed.payload).digest()


def _payload(signed: Signed, kind: type[Payload]) -> Payload:
    try:
        return msgspec.json.decode(signed.payload, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProofRejected("malformed", f"the platform's statement is malformed: {error}") from None
