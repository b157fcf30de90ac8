"""Charges at Stripe: money taken from a card, and Stripe's fee for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from billing.models.payments import MAX_FINGERPRINT
from billing.stripe.calls import reference_id, translated

if TYPE_CHECKING:
    import stripe


@dataclass(frozen=True, slots=True)
class StripeFee:
    """Stripe's fee for one charge."""

    balance_transaction_id: str
    fee_cents: int


@dataclass(frozen=True, slots=True)
class PaidWith:
    """The card of a payment, by Stripe's fingerprint; "" for a payment without a card.

    `counts` says that it stands for its holder: neither prepaid, nor a wallet's token of some card.
    """

    fingerprint: str
    counts: bool


@dataclass(frozen=True, slots=True)
class Charge:
    """A successful payment; `fee` is None until Stripe has booked it."""

    id: str
    payment_intent_id: str | None
    fee: StripeFee | None
    card: PaidWith


class Charges:
    """Calls about charges."""

    def __init__(self, client: stripe.StripeClient) -> None:
        self._client = client

    @translated
    def retrieve(self, charge_id: str) -> Charge:
        """Fetch a charge with Stripe's fee. Raises PaymentProviderUnavailable."""
        return parse_charge(self._client.v1.charges.retrieve(charge_id, {"expand": ["balance_transaction"]}))


def parse_charge(charge: Any) -> Charge:
    """Read a charge whose balance transaction may be expanded."""
    balance = charge.balance_transaction
    fee = StripeFee(balance.id, balance.fee) if balance is not None and not isinstance(balance, str) else None
    return Charge(
        id=charge.id,
        payment_intent_id=reference_id(charge.payment_intent),
        fee=fee,
        card=_paid_with(getattr(charge, "payment_method_details", None)),
    )


def read_fingerprint(card: Any) -> str:
    """Return the fingerprint of a card of a charge or of a payment method; "" where Stripe gives none."""
    return str(getattr(card, "fingerprint", None) or "")[:MAX_FINGERPRINT]


def _paid_with(details: Any) -> PaidWith:
    card = getattr(details, "card", None)
    fingerprint = read_fingerprint(card)
    own = getattr(card, "wallet", None) is None and getattr(card, "funding", None) != "prepaid"
    return PaidWith(fingerprint, counts=bool(fingerprint) and own)
