"""Payments: intents, charges, and the movements of the balance that they make. Amounts are cents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stripe import params

from devstack.stripe_double.messages import JsonObject
from devstack.stripe_double.objects import base
from devstack.stripe_double.resource import read

if TYPE_CHECKING:
    from devstack.stripe_double.core import StripeDouble

FEE_BASIS_POINTS = 290  # Stripe's list price for a card in the United States: 2.9 % + 30 ¢
FEE_CENTS = 30


def card_fee_cents(amount: int) -> int:
    """Return Stripe's fee for a card payment, rounded half up as Stripe does."""
    return (amount * FEE_BASIS_POINTS + 5_000) // 10_000 + FEE_CENTS


def take(double: StripeDouble, session: JsonObject) -> JsonObject:
    """Take the money of a checkout page; return the intent. `book` follows: Stripe books a charge a moment later."""
    now = double.now()
    intent = double.add(payment_intent(now, session))
    found = double.add(charge(now, intent))
    intent["latest_charge"] = found["id"]
    double.emit("charge.succeeded", found)
    double.emit("payment_intent.succeeded", intent)
    return intent


def book(double: StripeDouble, intent: JsonObject) -> None:
    """Book the charge of an intent on the balance, with its fee."""
    found = double.find("charge", intent["latest_charge"])
    found["balance_transaction"] = double.add(balance_transaction(double.now(), found))["id"]
    double.emit("charge.updated", found)


def payment_intent(now: int, session: JsonObject) -> JsonObject:
    return base(
        "payment_intent",
        "pi",
        now,
        amount=session["amount_total"],
        amount_received=session["amount_total"],
        currency=session["currency"],
        customer=session["customer"],
        latest_charge=None,
        metadata=session["_payment_intent_metadata"],
        payment_method_types=["card"],
        status="succeeded",
    )


def charge(now: int, intent: JsonObject) -> JsonObject:
    return base(
        "charge",
        "ch",
        now,
        amount=intent["amount"],
        amount_captured=intent["amount"],
        amount_refunded=0,
        balance_transaction=None,
        captured=True,
        currency=intent["currency"],
        customer=intent["customer"],
        disputed=False,
        metadata=intent["metadata"],
        paid=True,
        payment_intent=intent["id"],
        refunded=False,
        status="succeeded",
    )


def balance_transaction(now: int, charge: JsonObject) -> JsonObject:
    fee = card_fee_cents(charge["amount"])
    transaction = base(
        "balance_transaction",
        "txn",
        now,
        amount=charge["amount"],
        available_on=now + 2 * 24 * 3600,
        currency=charge["currency"],
        exchange_rate=None,
        fee=fee,
        net=charge["amount"] - fee,
        reporting_category="charge",
        source=charge["id"],
        status="pending",
        type="charge",
    )
    del transaction["livemode"]  # Stripe's only object without it
    return transaction


ROUTES = (
    *read(
        "/v1/payment_intents",
        "payment_intent",
        params.PaymentIntentRetrieveParams,
        params.PaymentIntentListParams,
        "customer",
    ),
    *read("/v1/charges", "charge", params.ChargeRetrieveParams, params.ChargeListParams, "customer", "payment_intent"),
    *read(
        "/v1/balance_transactions",
        "balance_transaction",
        params.BalanceTransactionRetrieveParams,
        params.BalanceTransactionListParams,
        "currency",
        "source",
        "type",
    ),
)
