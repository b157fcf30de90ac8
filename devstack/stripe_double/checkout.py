"""Checkout pages: in payment mode with inline prices, or in setup mode to save a card."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stripe.params import checkout

from devstack.stripe_double import cards, payments, tax
from devstack.stripe_double.messages import JsonObject, Refused, Response, invalid, missing
from devstack.stripe_double.objects import base
from devstack.stripe_double.pages import bank_page, checkout_page, success_url
from devstack.stripe_double.resource import RETRIEVE, page, read, route

if TYPE_CHECKING:
    from devstack.stripe_double.core import StripeDouble

SESSION_SECONDS = 24 * 3600
_CUSTOM_TEXT = ("after_submit", "shipping_address", "submit", "terms_of_service_acceptance")


# API


def _create(double: StripeDouble, _id: str, parameters: JsonObject, _key: str | None) -> JsonObject:
    mode = parameters.get("mode")
    needed = {"payment": "line_items", "setup": "customer"}.get(mode or "")
    if needed is None:
        raise invalid("mode", "this double knows the modes payment and setup only")
    for name in ("success_url", needed):
        if not parameters.get(name):
            raise missing(name)
    for name in ("success_url", "cancel_url"):
        url = urlsplit(parameters.get(name) or "http://absent")
        if url.scheme not in ("http", "https") or not url.netloc:
            raise invalid(name, "Not a valid URL", code="url_invalid")
    customer = parameters.get("customer")
    if customer is not None:
        double.find("customer", customer)
    amount = _total(parameters["line_items"]) if mode == "payment" else None
    session = double.add(_session(double, parameters, amount))
    session["automatic_tax"]["enabled"] = tax.wanted(parameters)
    session["_asked"] = tax.asked(parameters)
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


def pay(
    double: StripeDouble, session_id: str, card: str = "pm_card_visa", *, approve: bool | None = None
) -> JsonObject | None:
    """Pay the page, or save the card on it, with one of the test cards. Paying twice takes the money once.

    `approve` is what the card's holder answers to the bank, if it asks; None leaves the question open. Returns the
    session, or None for an unknown page. Raises Refused when the bank declines: the page stays open.
    """
    with double.turn():
        session = _find(double, session_id)
        if session is not None and session["status"] == "open":
            if session["mode"] == "setup":
                intent = cards.save(double, session["customer"], card, session["_intent_metadata"])
                _complete(double, session, setup_intent=intent["id"])
            else:
                tax.reckon(double, session)
                _pay_open(double, session, card, approve)
        return copy.deepcopy(session)


def _pay_open(double: StripeDouble, session: JsonObject, card: str, approve: bool | None) -> None:
    saves = session["_setup_future_usage"] == "off_session"
    method = cards.make(double, card, session["customer"] if saves else None)
    intent = double.state.objects.get(session["payment_intent"] or "")
    if intent is None:  # the intent comes with the first try to pay
        intent = payments.make_intent(
            double,
            amount=session["amount_total"],
            customer=session["customer"],
            metadata=session["_intent_metadata"],
        )
        session["payment_intent"] = intent["id"]
    intent["payment_method"] = method["id"]
    if approve is False:
        raise payments.decline(double, intent, method, code="payment_intent_authentication_failure")
    charge = payments.attempt(double, intent, approved=bool(approve))
    if charge is not None:
        _complete(double, session, payment_status="paid")
        payments.settle(double, charge)


def _complete(double: StripeDouble, session: JsonObject, **fields: str) -> None:
    session |= fields | {"status": "complete", "url": None}
    double.emit("checkout.session.completed", session)


def _find(double: StripeDouble, session_id: str) -> JsonObject | None:
    found = double.state.objects.get(session_id)
    return found if found is not None and found["object"] == "checkout.session" else None


def _show(double: StripeDouble, session_id: str, _form: dict[str, str]) -> Response:
    with double.turn():
        return checkout_page(_find(double, session_id))


def _pay(double: StripeDouble, session_id: str, form: dict[str, str]) -> Response:
    card = form.get("card", "pm_card_visa")
    approve = {"yes": True, "no": False}.get(form.get("approve", ""))
    try:
        if form.get("country"):
            double.payer = tax.payer_of_form(form)
        session = pay(double, session_id, card, approve=approve)
    except Refused as refusal:
        with double.turn():
            return checkout_page(_find(double, session_id), refused=refusal.message, typed=form)
    if session is not None and session["status"] == "open":
        return bank_page(session, card)
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


def _session(double: StripeDouble, params: JsonObject, amount: int | None) -> JsonObject:
    """Make an open page. The intent comes with the payment, as at Stripe."""
    added = None if amount is None else amount * double.tax_percent // 100
    data: JsonObject = params.get("payment_intent_data") or params.get("setup_intent_data") or {}
    session = base(
        "checkout.session",
        "cs_test",
        double.now(),
        amount_subtotal=amount,
        amount_total=None if amount is None or added is None else amount + added,
        automatic_tax={"enabled": False, "liability": None, "provider": None, "status": None},
        cancel_url=params.get("cancel_url"),
        client_reference_id=params.get("client_reference_id"),
        currency=None if amount is None else "usd",
        custom_fields=[],
        custom_text={name: None for name in _CUSTOM_TEXT},
        customer=params.get("customer"),
        customer_details=None,
        customer_email=params.get("customer_email"),
        expires_at=params.get("expires_at", double.now() + SESSION_SECONDS),
        metadata=params.get("metadata", {}),
        mode=params["mode"],
        payment_intent=None,
        payment_method_types=["card"],
        payment_status="unpaid" if params["mode"] == "payment" else "no_payment_required",
        setup_intent=None,
        shipping_options=[],
        status="open",
        success_url=params["success_url"],
        total_details=None
        if added is None
        else {"amount_discount": 0, "amount_shipping": 0, "amount_tax": added, "breakdown": None},
        # Not part of Stripe's object: the intent copies the metadata, and the page shows the description.
        _intent_metadata=data.get("metadata", {}),
        _setup_future_usage=data.get("setup_future_usage"),
        _description=_description(params),
    )
    session["url"] = f"{double.base_url}/checkout/{session['id']}"
    return session


def _description(params: JsonObject) -> str:
    if params["mode"] == "setup":
        return "Save a card"
    return str(params["line_items"][0]["price_data"]["product_data"]["name"])


def _total(line_items: list[JsonObject]) -> int:
    """Return the sum of inline-priced lines in cents of US dollars. Raises Refused."""
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
    payments.check_amount(total, "line_items")
    return total


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
            "currency",
            "customer",
            "customer_email",
            "expires_at",
            "expand",
            "metadata",
            "payment_intent_data",
            "allowed_payment_method_types",
            "setup_intent_data",
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
