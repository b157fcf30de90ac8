"""Saved cards at Stripe, and payments with them while their holder is away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from billing.stripe.calls import CURRENCY, pages, reference_id, translated
from billing.stripe.charges import Charge, parse_charge, read_fingerprint

if TYPE_CHECKING:
    import stripe

AUTHENTICATION_REQUIRED = "authentication_required"
_CHARGE = ["latest_charge.balance_transaction"]
_SEARCHED = 100  # newest payments of a customer, in which a lost answer is looked for


@dataclass(frozen=True, slots=True)
class Card:
    """A card as Stripe shows it."""

    id: str  # of the payment method
    brand: str
    last4: str
    exp_month: int
    exp_year: int
    fingerprint: str  # the same for the same number


@dataclass(frozen=True, slots=True)
class SetupPage:
    """A page where a customer saves a card; `card` is None until it is saved."""

    id: str
    url: str
    organization_id: str
    card: Card | None


@dataclass(frozen=True, slots=True)
class CardPayment:
    """One payment with a saved card."""

    intent_id: str
    succeeded: bool
    failure: str  # Stripe's code of why the bank refused: `AUTHENTICATION_REQUIRED` or another; "" before it decided
    amount_cents: int
    currency: str
    top_up_id: str
    charge: Charge | None


class Cards:
    """Calls about customers and their cards. All raise PaymentProviderUnavailable."""

    def __init__(self, client: stripe.StripeClient) -> None:
        self._client = client

    @translated
    def create_customer(self, *, organization_id: UUID, name: str) -> str:
        """Make the organization's customer, and return its id."""
        customer = self._client.v1.customers.create(
            {"name": name, "metadata": {"organization_id": str(organization_id)}},
            {"idempotency_key": f"customer:{organization_id}"},
        )
        return str(customer.id)

    @translated
    def open_setup_page(
        self, *, key: UUID, customer_id: str, organization_id: UUID, success_url: str, cancel_url: str
    ) -> SetupPage:
        """Open a page where the customer saves a card, answering to its bank now so that it need not later."""
        session = self._client.v1.checkout.sessions.create(
            {
                "mode": "setup",
                "customer": customer_id,
                "client_reference_id": str(organization_id),
                "currency": CURRENCY,
                "setup_intent_data": {"metadata": {"organization_id": str(organization_id)}},
                "success_url": success_url,
                "cancel_url": cancel_url,
            },
            {"idempotency_key": f"save-card:{key}"},
        )
        return _parse_page(session)

    @translated
    def retrieve_setup_page(self, session_id: str) -> SetupPage:
        """Fetch the page with the card that was saved on it."""
        expand = ["setup_intent.payment_method"]
        return _parse_page(self._client.v1.checkout.sessions.retrieve(session_id, {"expand": expand}))

    @translated
    def retrieve(self, card_id: str) -> Card:
        """Fetch a saved card."""
        return _parse_card(self._client.v1.payment_methods.retrieve(card_id))

    @translated
    def remove(self, card_id: str) -> None:
        """Forget the card; one that is forgotten already stays so."""
        import stripe

        try:
            self._client.v1.payment_methods.detach(card_id)
        except stripe.InvalidRequestError as error:
            if error.code == "resource_missing":  # Stripe knows it no longer
                return
            if self._client.v1.payment_methods.retrieve(card_id).customer is not None:
                raise

    @translated
    def charge(
        self, *, top_up_id: UUID, organization_id: UUID, customer_id: str, card_id: str, amount_cents: int
    ) -> CardPayment:
        """Charge a saved card while its holder is away. A refusal by the bank is an answer, not an error."""
        import stripe

        try:
            intent = self._client.v1.payment_intents.create(
                {
                    "amount": amount_cents,
                    "currency": CURRENCY,
                    "customer": customer_id,
                    "payment_method": card_id,
                    "allowed_payment_method_types": ["card"],
                    "off_session": True,
                    "confirm": True,
                    "description": "Prediction credit",
                    "metadata": {
                        "top_up_id": str(top_up_id),
                        "organization_id": str(organization_id),
                        "paid_with": "saved_card",
                    },
                    "expand": _CHARGE,
                },
                {"idempotency_key": f"card-top-up:{top_up_id}"},
            )
        except stripe.CardError as error:
            refused: Any = error.error
            if refused is None or refused.payment_intent is None:
                raise
            return _parse_payment(refused.payment_intent)
        return _parse_payment(intent)

    @translated
    def retrieve_payment(self, intent_id: str) -> CardPayment:
        """Fetch a payment as it is now."""
        return _parse_payment(self._client.v1.payment_intents.retrieve(intent_id, {"expand": _CHARGE}))

    @translated
    def find_payment(self, *, customer_id: str, top_up_id: UUID) -> CardPayment | None:
        """Look for the payment of a top-up whose answer was lost, among the customer's newest."""
        page = self._client.v1.payment_intents.list({"customer": customer_id, "limit": _SEARCHED})
        for intent, _number in zip(pages(page), range(_SEARCHED), strict=False):
            found = _parse_payment(intent)
            if found.top_up_id == str(top_up_id):
                return self.retrieve_payment(found.intent_id)
        return None

    @translated
    def cancel_payment(self, intent_id: str) -> CardPayment:
        """End a payment that the bank refused, so that it cannot succeed later; return it as it is then."""
        import stripe

        try:
            self._client.v1.payment_intents.cancel(intent_id)
        except stripe.InvalidRequestError as error:
            if error.code != "payment_intent_unexpected_state":
                raise
        return self.retrieve_payment(intent_id)


def _parse_page(session: Any) -> SetupPage:
    intent = session.setup_intent
    method = None if intent is None or isinstance(intent, str) else intent.payment_method
    saved = session.status == "complete" and method is not None and not isinstance(method, str)
    return SetupPage(
        id=session.id,
        url=session.url or "",
        organization_id=session.client_reference_id or "",
        card=_parse_card(method) if saved else None,
    )


def _parse_card(method: Any) -> Card:
    card = method.card
    return Card(
        method.id,
        str(card.brand)[:32],
        str(card.last4)[:4],
        int(card.exp_month),
        int(card.exp_year),
        read_fingerprint(card),
    )


def _parse_payment(intent: Any) -> CardPayment:
    error = intent.last_payment_error
    charge = intent.latest_charge
    succeeded = intent.status == "succeeded"
    return CardPayment(
        intent_id=intent.id,
        succeeded=succeeded,
        failure="" if succeeded or error is None else str(error.code or "refused"),
        amount_cents=intent.amount,
        currency=intent.currency,
        top_up_id=_metadata(intent, "top_up_id") if _metadata(intent, "paid_with") == "saved_card" else "",
        charge=parse_charge(charge) if succeeded and reference_id(charge) != charge else None,
    )


def _metadata(intent: Any, name: str) -> str:
    return str(intent.metadata[name]) if name in intent.metadata else ""
