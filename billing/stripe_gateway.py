"""The one module that talks to Stripe. It parses the answers into the few typed values that billing uses.

The stripe package is imported on first use: the web process starts without it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from uuid import UUID

from django.conf import settings

from billing.errors import BillingError, PaymentProviderUnavailable

if TYPE_CHECKING:
    import stripe

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 3.0
READ_SECONDS = 15.0
NETWORK_RETRIES = 2
WEBHOOK_TOLERANCE_SECONDS = 300
CURRENCY = "usd"
MAX_ID = 255  # characters of an id at Stripe
MAX_EVENT_TYPE = 100
# `process_stripe_event` acts on these, and the webhook endpoint at Stripe subscribes to them.
EVENT_TYPES = (
    "checkout.session.completed",
    "checkout.session.async_payment_succeeded",
    "checkout.session.async_payment_failed",
    "checkout.session.expired",
    "charge.updated",
)
_SESSION_EXPAND = ["payment_intent.latest_charge.balance_transaction"]

P = ParamSpec("P")
T = TypeVar("T")


class InvalidWebhookSignature(BillingError):
    """The webhook was not signed by Stripe with our secret, or too long ago."""


@dataclass(frozen=True, slots=True)
class StripeFee:
    """Stripe's fee for one charge."""

    balance_transaction_id: str
    fee_cents: int


@dataclass(frozen=True, slots=True)
class Charge:
    """A successful payment; `fee` is None until Stripe has booked it."""

    id: str
    payment_intent_id: str | None
    fee: StripeFee | None


@dataclass(frozen=True, slots=True)
class CheckoutSession:
    """One checkout page."""

    id: str
    url: str
    status: str  # open, complete, expired
    payment_status: str  # paid, unpaid, no_payment_required
    amount_total_cents: int  # the customer's payment, tax included
    currency: str
    client_reference_id: str
    payment_intent_id: str | None
    charge: Charge | None
    amount_tax_cents: int = 0  # the part of the total that Stripe added as tax


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened to an object at Stripe; the object is fetched when the event is processed."""

    id: str
    type: str
    object_id: str  # empty for an object without an id, such as a balance


def _translated(call: Callable[P, T]) -> Callable[P, T]:
    """Turn every error of Stripe's client into PaymentProviderUnavailable; the log has its type and code, no secret."""

    @functools.wraps(call)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        import stripe

        try:
            return call(*args, **kwargs)
        except stripe.StripeError as error:
            logger.error("Stripe %s: %s %s", call.__name__, type(error).__name__, error.code or error.http_status or "")
            raise PaymentProviderUnavailable from error

    return wrapper


class StripeGateway:
    """Calls to Stripe. Every write carries an idempotency key, so that a retry after a lost answer changes nothing."""

    def __init__(self, client: stripe.StripeClient, *, webhook_secret: str) -> None:
        self._client = client
        self._webhook_secret = webhook_secret

    @_translated
    def create_checkout_session(
        self, *, top_up_id: UUID, organization_id: UUID, amount_cents: int, success_url: str, cancel_url: str
    ) -> CheckoutSession:
        """Open a page where the customer pays `amount_cents`. Raises PaymentProviderUnavailable."""
        metadata = {"top_up_id": str(top_up_id), "organization_id": str(organization_id)}
        session = self._client.v1.checkout.sessions.create(
            {
                "mode": "payment",
                "client_reference_id": str(top_up_id),
                "line_items": [
                    {
                        "quantity": 1,
                        "price_data": {
                            "currency": CURRENCY,
                            "unit_amount": amount_cents,
                            # Tax comes on top: the credit is the amount that was asked for.
                            "tax_behavior": "exclusive",
                            "product_data": {"name": "Prediction credit"},
                        },
                    }
                ],
                "metadata": metadata,
                "payment_intent_data": {"metadata": metadata},
                "success_url": success_url,
                "cancel_url": cancel_url,
            },
            {"idempotency_key": f"top-up:{top_up_id}"},
        )
        return _checkout_session(session)

    @_translated
    def retrieve_checkout_session(self, session_id: str) -> CheckoutSession:
        """Fetch the page as it is now, with its charge. Raises PaymentProviderUnavailable."""
        return _checkout_session(self._client.v1.checkout.sessions.retrieve(session_id, {"expand": _SESSION_EXPAND}))

    @_translated
    def close_checkout_session(self, session_id: str) -> None:
        """Close an open page, so that it cannot be paid any more. Raises PaymentProviderUnavailable.

        A page that is paid or expired stays as it is: Stripe refuses to close it, and retrieving it tells which.
        """
        import stripe

        try:
            self._client.v1.checkout.sessions.expire(session_id)
        except stripe.InvalidRequestError as error:
            logger.info("Stripe did not close a checkout page: %s", error.code or error.http_status)

    @_translated
    def retrieve_charge(self, charge_id: str) -> Charge:
        """Fetch a charge with Stripe's fee. Raises PaymentProviderUnavailable."""
        return _charge(self._client.v1.charges.retrieve(charge_id, {"expand": ["balance_transaction"]}))

    @_translated
    def undelivered_events(self, *, since: int, limit: int) -> list[Event]:
        """List events since the unix time `since` that no webhook has delivered. Raises PaymentProviderUnavailable."""
        page = self._client.v1.events.list(
            {"types": list(EVENT_TYPES), "created": {"gte": since}, "delivery_success": False, "limit": min(limit, 100)}
        )
        return [_event(event) for event, _number in zip(_pages(page), range(limit), strict=False)]

    def verify_webhook(self, payload: bytes, signature: str) -> Event:
        """Check the signature of a webhook body and return its event.

        Raises InvalidWebhookSignature, also for a signed body that is no event.
        """
        import stripe

        try:
            return _event(
                self._client.construct_event(payload, signature, self._webhook_secret, WEBHOOK_TOLERANCE_SECONDS)
            )
        except (stripe.SignatureVerificationError, ValueError, AttributeError, LookupError, TypeError) as error:
            raise InvalidWebhookSignature(str(type(error).__name__)) from None


@functools.cache
def stripe_gateway() -> StripeGateway:
    """Return this process's gateway, from its settings: to Stripe, or to the double that STRIPE_API_BASE names."""
    import stripe

    env = settings.ENV
    client = stripe.StripeClient(
        env.stripe_api_key,
        base_addresses={"api": env.stripe_api_base.rstrip("/")} if env.stripe_api_base else {},
        http_client=stripe.RequestsClient(timeout=(CONNECT_SECONDS, READ_SECONDS)),
        max_network_retries=NETWORK_RETRIES,
    )
    return StripeGateway(client, webhook_secret=env.stripe_webhook_secret)


def _pages(page: Any) -> Iterator[Any]:
    yield from page.auto_paging_iter()


def _id(value: Any) -> str | None:
    """Return the id of a reference, which is a string or, when expanded, an object."""
    return value if value is None or isinstance(value, str) else str(value.id)


def _charge(charge: Any) -> Charge:
    balance = charge.balance_transaction
    fee = StripeFee(balance.id, balance.fee) if balance is not None and not isinstance(balance, str) else None
    return Charge(id=charge.id, payment_intent_id=_id(charge.payment_intent), fee=fee)


def _checkout_session(session: Any) -> CheckoutSession:
    intent = session.payment_intent
    charge = None if intent is None or isinstance(intent, str) else intent.latest_charge
    return CheckoutSession(
        id=session.id,
        url=session.url or "",
        status=session.status,
        payment_status=session.payment_status,
        amount_total_cents=session.amount_total or 0,
        amount_tax_cents=_tax_cents(session),
        currency=session.currency or "",
        client_reference_id=session.client_reference_id or "",
        payment_intent_id=_id(intent),
        charge=None if charge is None or isinstance(charge, str) else _charge(charge),
    )


def _tax_cents(session: Any) -> int:
    return int(getattr(getattr(session, "total_details", None), "amount_tax", 0) or 0)


def _event(event: Any) -> Event:
    """Read the three values that are kept. Raises ValueError, AttributeError or LookupError for what is no event."""
    return Event(
        id=_name(event.id, MAX_ID), type=_name(event.type, MAX_EVENT_TYPE), object_id=_object_id(event.data.object)
    )


def _object_id(subject: Any) -> str:
    """Return the id of an event's object, or "": a balance, for example, has none."""
    found = getattr(subject, "id", None)
    return "" if found is None else _name(found, MAX_ID)


def _name(value: Any, limit: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= limit or not value.isprintable():
        raise ValueError("a name at Stripe is a short printable text")
    return value
