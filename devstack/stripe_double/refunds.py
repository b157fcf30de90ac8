"""Refunds of charges, whole or in part. Amounts are cents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stripe import params

from devstack.stripe_double import balance
from devstack.stripe_double.messages import JsonObject, Refused, invalid, missing
from devstack.stripe_double.objects import base
from devstack.stripe_double.resource import read, route

if TYPE_CHECKING:
    from devstack.stripe_double.core import StripeDouble


def _create(double: StripeDouble, _id: str, parameters: JsonObject, key: str | None) -> JsonObject:
    charge = _charge_to_refund(double, parameters)
    rest = charge["amount"] - charge["amount_refunded"]
    if charge["disputed"] and not _is_refundable(double, charge):
        raise Refused(
            400, "invalid_request_error", f"Charge {charge['id']} is disputed.", code="charge_disputed", param="charge"
        )
    if rest == 0:
        raise Refused(
            400,
            "invalid_request_error",
            f"Charge {charge['id']} has already been refunded.",
            code="charge_already_refunded",
        )
    amount = parameters.get("amount", rest)
    if not 0 < amount <= rest:
        raise invalid("amount", f"Refund amount ({amount}) is greater than unrefunded amount on charge ({rest})")
    refund = base(
        "refund",
        "re",
        double.now(),
        amount=amount,
        balance_transaction=None,
        charge=charge["id"],
        currency=charge["currency"],
        metadata=parameters.get("metadata", {}),
        payment_intent=charge["payment_intent"],
        reason=parameters.get("reason"),
        status="succeeded",
    )
    del refund["livemode"]
    double.add(refund)
    refund["balance_transaction"] = balance.book(double, "refund", refund, -amount)["id"]
    charge["amount_refunded"] += amount
    charge["refunded"] = charge["amount_refunded"] == charge["amount"]
    double.emit("refund.created", refund, key)
    double.emit("charge.refunded", charge, key)
    return double.shown(refund, parameters)


def _charge_to_refund(double: StripeDouble, parameters: JsonObject) -> JsonObject:
    if "payment_intent" in parameters:
        intent = double.find("payment_intent", parameters["payment_intent"])
        if intent["status"] != "succeeded":
            raise invalid("payment_intent", "This PaymentIntent does not have a successful charge to refund.")
        return double.find("charge", intent["latest_charge"])
    if "charge" not in parameters:
        raise missing("charge")
    return double.find("charge", parameters["charge"])


def _is_refundable(double: StripeDouble, charge: JsonObject) -> bool:
    """Return whether no bank has taken the charge back: inquiries and disputes that were won let it be refunded."""
    disputes = [one for one in double.state.of_kind("dispute") if one["charge"] == charge["id"]]
    return bool(disputes) and all(one["status"] == "won" or "warning" in one["status"] for one in disputes)


def fail(double: StripeDouble, refund_id: str) -> None:
    """Let the customer's bank send a refund back, days later: the money returns to the balance."""
    with double.turn():
        refund = double.find("refund", refund_id)
        charge = double.find("charge", refund["charge"])
        moved = balance.book(double, "refund_failure", refund, refund["amount"])
        refund |= {
            "failure_balance_transaction": moved["id"],
            "failure_reason": "expired_or_canceled_card",
            "status": "failed",
        }
        charge["amount_refunded"] -= refund["amount"]
        charge["refunded"] = False
        double.emit("refund.failed", refund)


ROUTES = (
    route(
        "POST",
        "/v1/refunds",
        params.RefundCreateParams,
        {"amount", "charge", "expand", "metadata", "payment_intent", "reason"},
        _create,
    ),
    *read("/v1/refunds", "refund", params.RefundRetrieveParams, params.RefundListParams, "charge", "payment_intent"),
)
