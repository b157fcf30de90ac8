"""Checkout pages at Stripe, where a customer pays with a card that we never see."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from billing.stripe import tax
from billing.stripe.calls import CURRENCY, reference_id, translated
from billing.stripe.charges import Charge, parse_charge

if TYPE_CHECKING:
    import stripe
    from stripe.params.checkout import SessionCreateParams

logger = logging.getLogger(__name__)

_EXPAND = ["payment_intent.latest_charge.balance_transaction", *tax.EXPAND]


@dataclass(frozen=True, slots=True)
class CheckoutSession:
    """One checkout page."""

    id: str
    mode: str  # payment, or setup: a card is saved
    url: str
    status: str  # open, complete, expired
    payment_status: str  # paid, unpaid, no_payment_required
    amount_total_cents: int  # the customer's payment, tax included
    currency: str
    client_reference_id: str
    payment_intent_id: str | None
    charge: Charge | None
    amount_tax_cents: int = 0  # the part of the total that Stripe added as tax
    taxes: tuple[tax.TaxAmount, ...] = ()
    payer: tax.Payer | None = None


class Checkout:
    """Calls about checkout pages. Every write carries an idempotency key: a retry after a lost answer changes nothing.

    All raise PaymentProviderUnavailable.
    """

    def __init__(self, client: stripe.StripeClient, *, reckons_tax: bool) -> None:
        self._client = client
        self._tax_parameters: SessionCreateParams = tax.PARAMETERS if reckons_tax else {}

    @translated
    def create(
        self, *, top_up_id: UUID, organization_id: UUID, amount_cents: int, success_url: str, cancel_url: str
    ) -> CheckoutSession:
        """Open a page where the customer pays `amount_cents`."""
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
                **self._tax_parameters,
            },
            {"idempotency_key": f"top-up:{top_up_id}"},
        )
        return _parse(session)

    @translated
    def retrieve(self, session_id: str) -> CheckoutSession:
        """Fetch the page as it is now, with its charge."""
        return _parse(self._client.v1.checkout.sessions.retrieve(session_id, {"expand": _EXPAND}))

    @translated
    def close(self, session_id: str) -> None:
        """Close an open page, so that it cannot be paid any more.

        A page that is paid or expired stays as it is: Stripe refuses to close it, and retrieving it tells which.
        """
        import stripe

        try:
            self._client.v1.checkout.sessions.expire(session_id)
        except stripe.InvalidRequestError as error:
            logger.info("Stripe did not close a checkout page: %s", error.code or error.http_status)


def _parse(session: Any) -> CheckoutSession:
    intent = session.payment_intent
    charge = None if intent is None or isinstance(intent, str) else intent.latest_charge
    return CheckoutSession(
        id=session.id,
        mode=session.mode,
        url=session.url or "",
        status=session.status,
        payment_status=session.payment_status,
        amount_total_cents=session.amount_total or 0,
        amount_tax_cents=_tax_cents(session),
        taxes=tax.parse_taxes(session),
        payer=tax.parse_payer(session),
        currency=session.currency or "",
        client_reference_id=session.client_reference_id or "",
        payment_intent_id=reference_id(intent),
        charge=None if charge is None or isinstance(charge, str) else parse_charge(charge),
    )


def _tax_cents(session: Any) -> int:
    return int(getattr(getattr(session, "total_details", None), "amount_tax", 0) or 0)
