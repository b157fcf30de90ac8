"""Cards: Stripe's own test cards by their ids, saved ones, and what each does when it is charged."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stripe import params

from devstack.stripe_double.messages import JsonObject, Refused, invalid
from devstack.stripe_double.objects import base
from devstack.stripe_double.resource import RETRIEVE, read, route

if TYPE_CHECKING:
    from devstack.stripe_double.core import StripeDouble


@dataclass(frozen=True, slots=True)
class TestCard:
    """A card of Stripe's test mode. `decline` is the bank's reason; `asks` says when the bank asks its holder (3-D
    Secure): "" never, "once" when the card is saved or used first, "always" at every payment."""

    __test__ = False  # not a test, though its name begins so

    number: str
    label: str
    decline: str = ""
    asks: str = ""
    disputed: bool = False
    brand: str = "visa"
    funding: str = "credit"

    @property
    def last4(self) -> str:
        return self.number[-4:]

    @property
    def fingerprint(self) -> str:
        """Return that of the number: equal for equal numbers, whoever saves the card or pays with it."""
        return hashlib.sha256(f"stripe double {self.number}".encode()).hexdigest()[:16]


TEST_CARDS = {
    "pm_card_visa": TestCard("4242424242424242", "works"),
    "pm_card_mastercard": TestCard("5555555555554444", "works", brand="mastercard"),
    "pm_card_mastercard_prepaid": TestCard("5105105105105100", "prepaid", brand="mastercard", funding="prepaid"),
    "pm_card_authenticationRequired": TestCard("4000002760003184", "asks at every payment", asks="always"),
    "pm_card_authenticationRequiredSetupForOffSession": TestCard("4000002500003155", "asks once", asks="once"),
    "pm_card_chargeCustomerFail": TestCard("4000000000000341", "is declined", decline="generic_decline"),
    "pm_card_visa_chargeDeclinedInsufficientFunds": TestCard(
        "4000000000009995", "has no money", decline="insufficient_funds"
    ),
    "pm_card_createDispute": TestCard("4000000000000259", "pays, then disputes", disputed=True),
}


def make(double: StripeDouble, test_card: str, customer: str | None = None) -> JsonObject:
    """Make a payment method of one of the test cards, saved with `customer` if there is one. Raises Refused."""
    card = TEST_CARDS.get(test_card)
    if card is None:
        raise Refused(404, "invalid_request_error", f"No such PaymentMethod: '{test_card}'", code="resource_missing")
    method = base(
        "payment_method",
        "pm",
        double.now(),
        billing_details={"address": None, "email": None, "name": None, "phone": None},
        card={
            "brand": card.brand,
            "checks": None,
            "country": "US",
            "display_brand": card.brand,
            "exp_month": 12,
            "exp_year": 2034,
            "fingerprint": card.fingerprint,
            "funding": card.funding,
            "generated_from": None,
            "last4": card.last4,
            "networks": None,
            "three_d_secure_usage": {"supported": True},
            "wallet": None,
        },
        customer=customer,
        metadata={},
        type="card",
        _test_card=test_card,
    )
    return double.add(method)


def resolve(double: StripeDouble, method_id: str) -> JsonObject:
    """Return the payment method of this id; the id of a test card makes a new one. Raises Refused."""
    return make(double, method_id) if method_id in TEST_CARDS else double.find("payment_method", method_id)


def card_of(method: JsonObject) -> TestCard:
    """Return how the card behaves."""
    return TEST_CARDS[method["_test_card"]]


def _attach(double: StripeDouble, method_id: str, parameters: JsonObject, key: str | None) -> JsonObject:
    customer = double.find("customer", parameters.get("customer") or "")
    method = resolve(double, method_id)
    if method["customer"] not in (None, customer["id"]):
        raise invalid("customer", "The payment method has already been attached to another customer.")
    method["customer"] = customer["id"]
    double.emit("payment_method.attached", method, key)
    return double.shown(method, parameters)


def _detach(double: StripeDouble, method_id: str, parameters: JsonObject, key: str | None) -> JsonObject:
    method = double.find("payment_method", method_id)
    if method["customer"] is None:
        raise Refused(400, "invalid_request_error", "The payment method is not attached to a customer.")
    method["customer"] = None
    double.emit("payment_method.detached", method, key)
    return double.shown(method, parameters)


ROUTES = (
    route(
        "POST",
        "/v1/payment_methods/{id}/attach",
        params.PaymentMethodAttachParams,
        {"customer", "expand"},
        _attach,
    ),
    route("POST", "/v1/payment_methods/{id}/detach", params.PaymentMethodDetachParams, RETRIEVE, _detach),
    *read(
        "/v1/payment_methods",
        "payment_method",
        params.PaymentMethodRetrieveParams,
        params.PaymentMethodListParams,
        "customer",
        "type",
    ),
    *read(
        "/v1/setup_intents",
        "setup_intent",
        params.SetupIntentRetrieveParams,
        params.SetupIntentListParams,
        "customer",
        "payment_method",
    ),
)


def save(double: StripeDouble, customer: str, test_card: str, metadata: JsonObject) -> JsonObject:
    """Save a card with a customer, as a Checkout page in setup mode does; return the setup intent. Raises Refused."""
    method = make(double, test_card, customer)
    intent = double.add(
        base(
            "setup_intent",
            "seti",
            double.now(),
            customer=customer,
            metadata=metadata,
            payment_method=method["id"],
            payment_method_types=["card"],
            status="succeeded",
            usage="off_session",
        )
    )
    double.emit("payment_method.attached", method)
    double.emit("setup_intent.succeeded", intent)
    return intent
