"""Stripe's objects as JSON, with the fields that a client of Checkout reads. Amounts are cents."""

from __future__ import annotations

import secrets
from typing import Any

from devstack.stripe_double.messages import JsonObject

SESSION_SECONDS = 24 * 3600
FEE_BASIS_POINTS = 290  # Stripe's list price for a card in the United States: 2.9 % + 30 ¢
FEE_CENTS = 30


def new_id(prefix: str) -> str:
    """Return a fresh id of Stripe's form."""
    return f"{prefix}_{secrets.token_hex(12)}"


def card_fee_cents(amount: int) -> int:
    """Return Stripe's fee for a card payment, rounded half up as Stripe does."""
    return (amount * FEE_BASIS_POINTS + 5_000) // 10_000 + FEE_CENTS


def _base(kind: str, prefix: str, now: int, **fields: Any) -> JsonObject:
    return {"id": new_id(prefix), "object": kind, "created": now, "livemode": False, **fields}


def customer(now: int, params: JsonObject) -> JsonObject:
    return _base(
        "customer",
        "cus",
        now,
        email=params.get("email"),
        name=params.get("name"),
        description=params.get("description"),
        metadata=params.get("metadata", {}),
    )


def checkout_session(
    now: int, params: JsonObject, *, amount: int, tax: int, currency: str, base_url: str
) -> JsonObject:
    """Make an open page. The payment intent comes with the payment, as at Stripe."""
    session = _base(
        "checkout.session",
        "cs_test",
        now,
        amount_subtotal=amount,
        amount_total=amount + tax,
        cancel_url=params.get("cancel_url"),
        client_reference_id=params.get("client_reference_id"),
        currency=currency,
        customer=params.get("customer"),
        customer_email=params.get("customer_email"),
        expires_at=params.get("expires_at", now + SESSION_SECONDS),
        metadata=params.get("metadata", {}),
        mode=params["mode"],
        payment_intent=None,
        payment_method_types=["card"],
        payment_status="unpaid",
        status="open",
        success_url=params["success_url"],
        total_details={"amount_discount": 0, "amount_shipping": 0, "amount_tax": tax},
        # Not part of Stripe's object: the payment copies the metadata, and the page shows the description.
        _payment_intent_metadata=params.get("payment_intent_data", {}).get("metadata", {}),
        _description=params["line_items"][0]["price_data"]["product_data"]["name"],
    )
    session["url"] = f"{base_url}/checkout/{session['id']}"
    return session


def payment_intent(now: int, session: JsonObject) -> JsonObject:
    return _base(
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
    return _base(
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
    transaction = _base(
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


def event(now: int, kind: str, subject: JsonObject, *, api_version: str, request_key: str | None) -> JsonObject:
    """Say that `kind` happened to `subject`, with the subject as it is at this moment."""
    return _base(
        "event",
        "evt",
        now,
        api_version=api_version,
        data={"object": public(subject)},
        pending_webhooks=1,
        request={"id": None, "idempotency_key": request_key},
        type=kind,
    )


def public(found: JsonObject) -> JsonObject:
    """Return the object without the fields that the double keeps for itself."""
    return {name: value for name, value in found.items() if not name.startswith("_")}
