"""Disputes: a bank takes a payment back, hears evidence and decides. Amounts are cents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stripe import params

from devstack.stripe_double import balance
from devstack.stripe_double.messages import JsonObject, Refused, invalid
from devstack.stripe_double.objects import base, public
from devstack.stripe_double.resource import RETRIEVE, read, route

if TYPE_CHECKING:
    from devstack.stripe_double.core import StripeDouble

FEE_CENTS = 1_500
EVIDENCE_SECONDS = 7 * 24 * 3600
MAX_FILE_BYTES = 5 * 1024 * 1024
_EVIDENCE_FIELDS = tuple(
    name for name in params.DisputeUpdateParamsEvidence.__annotations__ if name != "enhanced_evidence"
)
_FILES = frozenset(
    {
        "cancellation_policy",
        "customer_communication",
        "customer_signature",
        "duplicate_charge_documentation",
        "receipt",
        "refund_policy",
        "service_documentation",
        "shipping_documentation",
        "uncategorized_file",
    }
)


def open_dispute(
    double: StripeDouble, charge: JsonObject, *, amount: int | None = None, reason: str = "fraudulent"
) -> JsonObject:
    """Let the bank take the charge back, or `amount` of it, and Stripe its fee; return the dispute."""
    now = double.now()
    dispute = double.add(
        base(
            "dispute",
            "dp",
            now,
            amount=charge["amount"] if amount is None else amount,
            balance_transactions=[],
            charge=charge["id"],
            currency=charge["currency"],
            enhanced_eligibility_types=[],
            evidence={name: None for name in _EVIDENCE_FIELDS} | {"enhanced_evidence": {}},
            evidence_details={
                "due_by": now + EVIDENCE_SECONDS,
                "enhanced_eligibility": {},
                "has_evidence": False,
                "past_due": False,
                "submission_count": 0,
                "submission_method": "not_submitted",
            },
            is_charge_refundable=False,
            metadata={},
            payment_intent=charge["payment_intent"],
            reason=reason,
            status="needs_response",
        )
    )
    charge["disputed"] = True
    double.emit("charge.dispute.created", dispute)
    _move(double, dispute, -dispute["amount"], fee=FEE_CENTS, category="dispute")
    double.emit("charge.dispute.funds_withdrawn", dispute)
    return dispute


def decide(double: StripeDouble, dispute_id: str, *, won: bool) -> None:
    """Let the bank decide; a dispute that the platform wins brings the money back, without the fee. Raises Refused."""
    with double.turn():
        _close(double, double.find("dispute", dispute_id), won=won)


def _close(double: StripeDouble, dispute: JsonObject, *, won: bool) -> None:
    if dispute["status"] in ("won", "lost"):
        raise Refused(400, "invalid_request_error", "This dispute is already closed.")
    dispute["status"] = "won" if won else "lost"
    if won:
        _move(double, dispute, dispute["amount"], fee=0, category="dispute_reversal")
        double.emit("charge.dispute.funds_reinstated", dispute)
    double.emit("charge.dispute.closed", dispute)


def _move(double: StripeDouble, dispute: JsonObject, amount: int, *, fee: int, category: str) -> None:
    moved = balance.book(double, "adjustment", dispute, amount, fee=fee, category=category)
    dispute["balance_transactions"] = [*dispute["balance_transactions"], public(moved)]


def _update(double: StripeDouble, dispute_id: str, parameters: JsonObject, key: str | None) -> JsonObject:
    dispute = double.find("dispute", dispute_id)
    if dispute["status"] in ("won", "lost"):
        raise Refused(400, "invalid_request_error", "This dispute is already closed.", code="dispute_closed")
    given = {name: value or None for name, value in parameters.get("evidence", {}).items()}
    for name in sorted(_FILES & set(given)):
        if given[name] and double.find("file", str(given[name]))["purpose"] != "dispute_evidence":
            raise invalid(f"evidence[{name}]", "The file is not meant as evidence of a dispute.")
    dispute["evidence"] |= given
    dispute["metadata"] |= parameters.get("metadata", {})
    details = dispute["evidence_details"]
    details["has_evidence"] = any(dispute["evidence"][name] for name in _EVIDENCE_FIELDS)
    if parameters.get("submit", True) and given:
        details["submission_count"] += 1
        details["submission_method"] = "manual"
        dispute["status"] = "under_review"
    double.emit("charge.dispute.updated", dispute, key)
    if dispute["status"] == "under_review":
        # Stripe's test mode decides by these texts.
        text = dispute["evidence"]["uncategorized_text"]
        if text in ("winning_evidence", "losing_evidence"):
            _close(double, dispute, won=text == "winning_evidence")
    return double.shown(dispute, parameters)


def _upload(double: StripeDouble, _id: str, parameters: JsonObject, _key: str | None) -> JsonObject:
    content = parameters["file"]
    if not isinstance(content, bytes) or not 0 < len(content) <= MAX_FILE_BYTES:
        raise invalid("file", f"A file has 1 to {MAX_FILE_BYTES} bytes.")
    found = base(
        "file",
        "file",
        double.now(),
        expires_at=None,
        filename=None,
        purpose=parameters["purpose"],
        size=len(content),
        title=None,
        type="pdf" if content.startswith(b"%PDF") else "png",
        url=None,
    )
    del found["livemode"]
    return double.shown(double.add(found), parameters)


ROUTES = (
    route(
        "POST",
        "/v1/disputes/{id}",
        params.DisputeUpdateParams,
        RETRIEVE | {"evidence", "metadata", "submit"},
        _update,
    ),
    *read(
        "/v1/disputes", "dispute", params.DisputeRetrieveParams, params.DisputeListParams, "charge", "payment_intent"
    ),
    route("POST", "/v1/files", params.FileCreateParams, RETRIEVE | {"file", "purpose"}, _upload),
    route(
        "GET",
        "/v1/files/{id}",
        params.FileRetrieveParams,
        RETRIEVE,
        lambda double, file_id, parameters, _key: double.shown(double.find("file", file_id), parameters),
    ),
)
