"""Payments: intents that are charged to a card, at once or when its holder has answered the bank. Amounts are cents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stripe import params

from devstack.stripe_double import balance, cards, disputes
from devstack.stripe_double.faults import FaultKind
from devstack.stripe_double.messages import JsonObject, Refused, invalid
from devstack.stripe_double.objects import base, public
from devstack.stripe_double.resource import RETRIEVE, read, route

if TYPE_CHECKING:
    from devstack.stripe_double.core import StripeDouble

FEE_BASIS_POINTS = 290  # Stripe's list price for a card in the United States: 2.9 % + 30 ¢
FEE_CENTS = 30
MIN_AMOUNT_CENTS = 50  # Stripe's own limits in US dollars
MAX_AMOUNT_CENTS = 99_999_999
CANCELLABLE = ("requires_payment_method", "requires_confirmation", "requires_action")


def card_fee_cents(amount: int) -> int:
    """Return Stripe's fee for a card payment, rounded half up as Stripe does."""
    return (amount * FEE_BASIS_POINTS + 5_000) // 10_000 + FEE_CENTS


def check_amount(amount: int, param: str) -> None:
    """Raise Refused for an amount that Stripe does not take."""
    if not MIN_AMOUNT_CENTS <= amount <= MAX_AMOUNT_CENTS:
        code = "amount_too_small" if amount < MIN_AMOUNT_CENTS else "amount_too_large"
        raise invalid(param, f"The amount must be between {MIN_AMOUNT_CENTS} and {MAX_AMOUNT_CENTS}", code=code)


def make_intent(double: StripeDouble, *, amount: int, **fields: Any) -> JsonObject:
    """Make an intent that waits for its confirmation."""
    given: JsonObject = {"customer": None, "description": None, "metadata": {}, "payment_method": None}
    given |= fields
    return double.add(
        base(
            "payment_intent",
            "pi",
            double.now(),
            amount=amount,
            amount_capturable=0,
            amount_received=0,
            cancellation_reason=None,
            capture_method="automatic",
            confirmation_method="automatic",
            currency="usd",
            last_payment_error=None,
            latest_charge=None,
            next_action=None,
            payment_method_types=["card"],
            status="requires_confirmation" if given["payment_method"] else "requires_payment_method",
            **given,
        )
    )


def attempt(double: StripeDouble, intent: JsonObject, *, approved: bool) -> JsonObject | None:
    """Charge the intent's card; `approved` says that its holder has answered the bank. Return the charge.

    None means that the bank wants to ask the holder. Raises Refused (402) when the bank declines. `settle` follows a
    success.
    """
    method = double.find("payment_method", intent["payment_method"])
    card = cards.card_of(method)
    reason = card.decline or ("generic_decline" if double.faults.injected(FaultKind.DECLINE) else "")
    if reason:
        raise decline(double, intent, method, code="card_declined", decline_code=reason)
    # A card that asks once was answered for when it was saved.
    asks = card.asks == "always" or (card.asks == "once" and method["customer"] is None)
    if not approved and (asks or double.faults.injected(FaultKind.AUTHENTICATION)):
        return None
    charge = double.add(_charge(double, intent, method))
    intent |= {
        "amount_received": intent["amount"],
        "last_payment_error": None,
        "latest_charge": charge["id"],
        "next_action": None,
        "status": "succeeded",
    }
    double.emit("charge.succeeded", charge)
    double.emit("payment_intent.succeeded", intent)
    return charge


def settle(double: StripeDouble, charge: JsonObject) -> None:
    """Book the charge on the balance with its fee, which Stripe does a moment later; some cards dispute then."""
    fee = card_fee_cents(charge["amount"])
    charge["balance_transaction"] = balance.book(double, "charge", charge, charge["amount"], fee=fee)["id"]
    double.emit("charge.updated", charge)
    if cards.card_of(double.find("payment_method", charge["payment_method"])).disputed:
        disputes.open_dispute(double, charge)


def decline(double: StripeDouble, intent: JsonObject, method: JsonObject, **error: str) -> Refused:
    """Note that the card was refused, and return the refusal."""
    message = "Your card was declined."
    if error["code"] == "authentication_required":
        message = "Your card was declined. This transaction requires authentication."
    failed = double.add(_charge(double, intent, method))
    failed |= {"amount_captured": 0, "captured": False, "failure_code": error["code"], "failure_message": message}
    failed |= {"paid": False, "status": "failed"}
    shown = {"charge": failed["id"], "message": message, "type": "card_error", **error}
    intent |= {"last_payment_error": shown | {"payment_method": public(method)}, "latest_charge": failed["id"]}
    intent |= {"payment_method": None, "status": "requires_payment_method"}
    double.emit("charge.failed", failed)
    double.emit("payment_intent.payment_failed", intent)
    return Refused(402, "card_error", message, **error, payment_intent=public(intent))


def _charge(double: StripeDouble, intent: JsonObject, method: JsonObject) -> JsonObject:
    return base(
        "charge",
        "ch",
        double.now(),
        amount=intent["amount"],
        amount_captured=intent["amount"],
        amount_refunded=0,
        balance_transaction=None,
        billing_details=method["billing_details"],
        captured=True,
        currency=intent["currency"],
        customer=intent["customer"],
        disputed=False,
        failure_code=None,
        failure_message=None,
        metadata=intent["metadata"],
        paid=True,
        payment_intent=intent["id"],
        payment_method=method["id"],
        payment_method_details={"type": "card", "card": _card_details(method["card"])},
        refunded=False,
        status="succeeded",
    )


def _card_details(card: JsonObject) -> JsonObject:
    shown = ("brand", "country", "exp_month", "exp_year", "fingerprint", "funding", "last4", "wallet")
    return {name: card[name] for name in shown}


def _create(double: StripeDouble, _id: str, parameters: JsonObject, _key: str | None) -> JsonObject:
    if parameters["currency"] != "usd":
        raise invalid("currency", "this double knows US dollars only")
    check_amount(parameters["amount"], "amount")
    if parameters.get("off_session") and not parameters.get("confirm"):
        raise invalid("off_session", "The parameter `off_session` cannot be passed without `confirm`.")
    customer = parameters.get("customer")
    if customer is not None:
        double.find("customer", customer)
    method = parameters.get("payment_method")
    if method is not None:
        found = cards.resolve(double, method)
        if found["customer"] not in (None, customer):
            raise invalid("payment_method", "The payment method belongs to another customer.")
        method = found["id"]
    intent = make_intent(
        double,
        amount=parameters["amount"],
        customer=customer,
        description=parameters.get("description"),
        metadata=parameters.get("metadata", {}),
        payment_method=method,
    )
    double.emit("payment_intent.created", intent)
    if parameters.get("confirm"):
        _confirm(double, intent, off_session=bool(parameters.get("off_session")))
    return double.shown(intent, parameters)


def _confirm(double: StripeDouble, intent: JsonObject, *, off_session: bool) -> None:
    if intent["payment_method"] is None:
        raise invalid("payment_method", "You cannot confirm this PaymentIntent because it's missing a payment method.")
    charge = attempt(double, intent, approved=False)
    if charge is not None:
        settle(double, charge)
    elif off_session:
        # The holder is not there to be asked.
        method = double.find("payment_method", intent["payment_method"])
        code = "authentication_required"
        raise decline(double, intent, method, code=code, decline_code=code)
    else:
        intent |= {"status": "requires_action", "next_action": {"type": "use_stripe_sdk", "use_stripe_sdk": {}}}
        double.emit("payment_intent.requires_action", intent)


def _cancel(double: StripeDouble, intent_id: str, parameters: JsonObject, key: str | None) -> JsonObject:
    intent = double.find("payment_intent", intent_id)
    if intent["status"] not in CANCELLABLE:
        message = f"You cannot cancel this PaymentIntent because it has a status of {intent['status']}."
        raise Refused(400, "invalid_request_error", message, code="payment_intent_unexpected_state")
    intent |= {"status": "canceled", "cancellation_reason": parameters.get("cancellation_reason")}
    double.emit("payment_intent.canceled", intent, key)
    return double.shown(intent, parameters)


ROUTES = (
    route(
        "POST",
        "/v1/payment_intents",
        params.PaymentIntentCreateParams,
        {
            "allowed_payment_method_types",
            "amount",
            "confirm",
            "currency",
            "customer",
            "description",
            "expand",
            "metadata",
            "off_session",
            "payment_method",
        },
        _create,
    ),
    route(
        "POST",
        "/v1/payment_intents/{id}/cancel",
        params.PaymentIntentCancelParams,
        RETRIEVE | {"cancellation_reason"},
        _cancel,
    ),
    *read(
        "/v1/payment_intents",
        "payment_intent",
        params.PaymentIntentRetrieveParams,
        params.PaymentIntentListParams,
        "customer",
    ),
    *read("/v1/charges", "charge", params.ChargeRetrieveParams, params.ChargeListParams, "customer", "payment_intent"),
)
