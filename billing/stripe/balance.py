"""The balance at Stripe: every movement of money there, as reconciliation reads it. Amounts are cents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from billing.stripe.calls import pages, reference_id, translated

if TYPE_CHECKING:
    import stripe


@dataclass(frozen=True, slots=True)
class Movement:
    """One balance transaction. `net_cents` is what the balance gained: the amount less Stripe's fee."""

    id: str
    kind: str  # Stripe's type, such as charge, refund, adjustment, transfer
    source_id: str  # the object that moved the money; "" for none
    payment_intent_id: str | None  # of a charge
    amount_cents: int
    fee_cents: int
    net_cents: int
    currency: str
    booked_at: datetime


class Balance:
    """Calls about the balance. All raise PaymentProviderUnavailable."""

    def __init__(self, client: stripe.StripeClient) -> None:
        self._client = client

    @translated
    def movements(self, *, since: int, limit: int) -> list[Movement]:
        """List the movements since a unix time, newest first; at most `limit`."""
        page = self._client.v1.balance_transactions.list(
            {"created": {"gte": since}, "limit": 100, "expand": ["data.source"]}
        )
        return list(_parsed(page, limit))


def _parsed(page: Any, limit: int) -> Iterator[Movement]:
    for found, _number in zip(pages(page), range(limit), strict=False):
        yield parse_movement(found)


def parse_movement(found: Any) -> Movement:
    """Read a balance transaction whose source may be expanded."""
    source = found.source
    intent = None if source is None or isinstance(source, str) else getattr(source, "payment_intent", None)
    return Movement(
        id=found.id,
        kind=str(found.type)[:64],
        source_id=reference_id(source) or "",
        payment_intent_id=reference_id(intent),
        amount_cents=found.amount,
        fee_cents=found.fee,
        net_cents=found.net,
        currency=found.currency,
        booked_at=datetime.fromtimestamp(found.created, UTC),
    )
