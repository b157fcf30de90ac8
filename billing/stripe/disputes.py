"""Disputes at Stripe: payments that a bank took back, and the evidence against it. Amounts are cents."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from billing.stripe.calls import reference_id, translated

if TYPE_CHECKING:
    import stripe
    from stripe.params import DisputeUpdateParamsEvidence

_EXPAND = ["payment_intent"]


@dataclass(frozen=True, slots=True)
class DisputeMovement:
    """Money that a dispute moved: taken from the balance (negative), or given back."""

    balance_transaction_id: str
    amount_cents: int
    fee_cents: int


@dataclass(frozen=True, slots=True)
class DisputedPayment:
    """A dispute as it is now."""

    id: str
    payment_intent_id: str | None
    top_up_id: str  # "" for a payment that is not a top-up
    amount_cents: int
    currency: str
    reason: str
    status: str
    due_at: datetime | None  # for evidence
    submissions: int
    movements: tuple[DisputeMovement, ...]


class Disputes:
    """Calls about disputes. All raise PaymentProviderUnavailable."""

    def __init__(self, client: stripe.StripeClient) -> None:
        self._client = client

    @translated
    def retrieve(self, dispute_id: str) -> DisputedPayment:
        """Fetch a dispute with its movements of money."""
        return _parse(self._client.v1.disputes.retrieve(dispute_id, {"expand": _EXPAND}))

    @translated
    def upload(self, *, key: str, name: str, content: bytes) -> str:
        """Store a file as evidence, once per `key`; return its id at Stripe."""
        content_file = io.BytesIO(content)
        content_file.name = name
        found = self._client.v1.files.create(
            {"purpose": "dispute_evidence", "file": content_file}, {"idempotency_key": f"evidence-file:{key}"}
        )
        return str(found.id)

    @translated
    def submit(self, dispute_id: str, *, key: str, evidence: Mapping[str, str]) -> DisputedPayment:
        """Hand evidence to the bank, once per `key`: texts, and ids of files, by Stripe's names."""
        given: DisputeUpdateParamsEvidence = dict(evidence)  # type: ignore[assignment]
        dispute = self._client.v1.disputes.update(
            dispute_id,
            {"evidence": given, "submit": True, "expand": _EXPAND},
            {"idempotency_key": f"evidence:{key}"},
        )
        return _parse(dispute)


def _parse(dispute: Any) -> DisputedPayment:
    intent = dispute.payment_intent
    metadata = {} if intent is None or isinstance(intent, str) else intent.metadata
    due_by = dispute.evidence_details.due_by
    return DisputedPayment(
        id=dispute.id,
        payment_intent_id=reference_id(intent),
        top_up_id=str(metadata["top_up_id"]) if "top_up_id" in metadata else "",
        amount_cents=dispute.amount,
        currency=dispute.currency,
        reason=str(dispute.reason)[:64],
        status=str(dispute.status)[:32],
        due_at=None if due_by is None else datetime.fromtimestamp(due_by, UTC),
        submissions=dispute.evidence_details.submission_count,
        movements=tuple(DisputeMovement(one.id, one.amount, one.fee) for one in dispute.balance_transactions),
    )
