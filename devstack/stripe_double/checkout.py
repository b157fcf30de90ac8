"""Checkout pages in payment mode with inline prices, which is all that buying credit needs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stripe.params import checkout

from devstack.stripe_double import payments, tax
from devstack.stripe_double.messages import JsonObject, Refused, Response, invalid, missing
from devstack.stripe_double.objects import base
from devstack.stripe_double.pages import checkout_page, success_url
from devstack.stripe_double.resource import RETRIEVE, page, read, route

if TYPE_CHECKING:
    from devstack.stripe_double.core import StripeDouble

SESSION_SECONDS = 24 * 3600
MIN_AMOUNT_CENTS = 50  # Stripe's own limits in US dollars
MAX_AMOUNT_CENTS = 99_999_999


# API


def _create(double: StripeDouble, _id: str, parameters: JsonObject, _key: str | None) -> JsonObject:
    for name in ("mode", "success_url", "line_items"):
        if not parameters.get(name):
            raise missing(name)
    if parameters["mode"] != "payment":
        raise invalid("mode", "this double knows payment mode only")
    for name in ("success_url", "cancel_url"):
        url = urlsplit(parameters.get(name) or "http://absent")
        if url.scheme not in ("http", "https") or not url.netloc:
            raise invalid(name, "Not a valid URL", code="url_invalid")
    customer = parameters.get("customer")
    if customer is not None:
        double.find("customer", customer)
    amount, currency = _total(parameters["line_items"])
    added = amount * double.tax_percent // 100
    session = double.add(_session(double, parameters, amount=amount, tax=added, currency=currency))
    session["automatic_tax"]["enabled"] = tax.wanted(parameters)
    return double.shown(session, parameters)


def _expire(double: StripeDouble, session_id: str, parameters: JsonObject, key: str | None) -> JsonObject:
    session = double.find("checkout.session", session_id)
    if session["status"] != "open":
        raise Refused(400, "invalid_request_error", "Only Checkout Sessions with a status of open can be expired.")
    _close(double, session, key)
    return double.shown(session, parameters)


def let_time_pass(double: StripeDouble) -> None:
    """Close the pages whose time is over."""
    for session in double.state.of_kind("checkout.session"):
        if session["status"] == "open" and session["expires_at"] <= double.now():
            _close(double, session)


def _close(double: StripeDouble, session: JsonObject, key: str | None = None) -> None:
    session |= {"status": "expired", "url": None}
    double.emit("checkout.session.expired", session, key)


# Page


def pay(double: StripeDouble, session_id: str) -> JsonObject | None:
    """Pay with a card that works. Paying twice takes the money once.

    Returns the session, or None for an unknown page.
    """
    with double.turn():
        session = _find(double, session_id)
        if session is not None and session["status"] == "open":
            tax.reckon(double, session)
            intent = payments.take(double, session)
            session |= {"payment_intent": intent["id"], "payment_status": "paid", "status": "complete", "url": None}
            double.emit("checkout.session.completed", session)
            payments.book(double, intent)
        return copy.deepcopy(session)


def _find(double: StripeDouble, session_id: str) -> JsonObject | None:
    found = double.state.objects.get(session_id)
    return found if found is not None and found["object"] == "checkout.session" else None


def _show(double: StripeDouble, session_id: str, _form: dict[str, str]) -> Response:
    with double.turn():
        return checkout_page(_find(double, session_id))


def _pay(double: StripeDouble, session_id: str, _form: dict[str, str]) -> Response:
    session = pay(double, session_id)
    if session is None or session["status"] != "complete":
        return checkout_page(session)
    return Response(303, b"", {"location": success_url(session)})


def _cancel(double: StripeDouble, session_id: str, _form: dict[str, str]) -> Response:
    with double.turn():
        session = _find(double, session_id)
        if session is None or not session["cancel_url"]:
            return checkout_page(session)
        return Response(303, b"", {"location": session["cancel_url"]})


# Objects


def _session(double: StripeDouble, params: JsonObject, *, amount: int, tax: int, currency: str) -> JsonObject:
    """Make an open page. The payment intent comes with the payment, as at Stripe."""
    session = base(
        "checkout.session",
        "cs_test",
        double.now(),
        amount_subtotal=amount,
        amount_total=amount + tax,
        automatic_tax={"enabled": False, "liability": None, "provider": None, "status": None},
        cancel_url=params.get("cancel_url"),
        client_reference_id=params.get("client_reference_id"),
        currency=currency,
        customer=params.get("customer"),
        customer_details=None,
        customer_email=params.get("customer_email"),
        expires_at=params.get("expires_at", double.now() + SESSION_SECONDS),
        metadata=params.get("metadata", {}),
        mode=params["mode"],
        payment_intent=None,
        payment_method_types=["card"],
        payment_status="unpaid",
        status="open",
        success_url=params["success_url"],
        total_details={"amount_discount": 0, "amount_shipping": 0, "amount_tax": tax, "breakdown": None},
        # Not part of Stripe's object: the payment copies the metadata, and the page shows the description.
        _payment_intent_metadata=params.get("payment_intent_data", {}).get("metadata", {}),
        _description=params["line_items"][0]["price_data"]["product_data"]["name"],
    )
    session["url"] = f"{double.base_url}/checkout/{session['id']}"
    return session


def _total(line_items: list[JsonObject]) -> tuple[int, str]:
    """Return the sum in cents and the currency of inline-priced lines. Raises Refused."""
    total = 0
    for number, item in enumerate(line_items):
        param = f"line_items[{number}]"
        price = item.get("price_data")
        if price is None or "unit_amount" not in price or "product_data" not in price:
            raise invalid(param, "this double knows lines with price_data, unit_amount and product_data only")
        if price["currency"] != "usd":
            raise invalid(f"{param}[price_data][currency]", "this double knows US dollars only")
        quantity = item.get("quantity", 1)
        if price["unit_amount"] < 0 or quantity < 1:
            raise invalid(param, "Invalid amount or quantity", code="parameter_invalid_integer")
        total += price["unit_amount"] * quantity
    if not MIN_AMOUNT_CENTS <= total <= MAX_AMOUNT_CENTS:
        code = "amount_too_small" if total < MIN_AMOUNT_CENTS else "amount_too_large"
        raise invalid("line_items", f"The total must be between {MIN_AMOUNT_CENTS} and {MAX_AMOUNT_CENTS}", code=code)
    return total, "usd"


ROUTES = (
    route(
        "POST",
        "/v1/checkout/sessions",
        checkout.SessionCreateParams,
        {
            *tax.PARAMETERS,
            "mode",
            "line_items",
            "success_url",
            "cancel_url",
            "client_reference_id",
            "customer",
            "customer_email",
            "expires_at",
            "expand",
            "metadata",
            "payment_intent_data",
        },
        _create,
    ),
    route("POST", "/v1/checkout/sessions/{id}/expire", checkout.SessionExpireParams, RETRIEVE, _expire),
    *read(
        "/v1/checkout/sessions",
        "checkout.session",
        checkout.SessionRetrieveParams,
        checkout.SessionListParams,
        "customer",
        "payment_intent",
        "status",
    ),
)
PAGES = (
    page("GET", "/checkout/{id}", _show),
    page("POST", "/checkout/{id}", _pay),
    page("POST", "/checkout/{id}/cancel", _cancel),
)
