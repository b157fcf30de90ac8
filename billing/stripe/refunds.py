"""Refunds at Stripe: money of a payment that goes back to its card. Amounts are cents."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from uuid import UUID

from billing.errors import BillingError
from billing.stripe.calls import pages, reference_id, translated

if TYPE_CHECKING:
    import stripe

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_LISTED = 100  # newest refunds of a payment, in which a lost answer is looked for


class RefundRejected(BillingError):
    """Stripe refused a refund for good: nothing moved. `reason` is Stripe's code."""

    def __init__(self, reason: str) -> None:
        """Keep Stripe's code."""
        super().__init__(f"Stripe refused: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Refund:
    """One refund as it is now. A bank may send its money back days after it succeeded."""

    id: str
    refund_id: str  # ours; "" for a refund that the platform did not ask for
    status: str  # pending, requires_action, succeeded, failed, canceled
    amount_cents: int
    currency: str
    failure: str
    balance_transaction_id: str | None
    return_balance_transaction_id: str | None  # of the money that came back


def _judged(call: Callable[P, T]) -> Callable[P, T]:
    """Tell a refusal for good (RefundRejected) from an unknown outcome."""

    @translated
    @functools.wraps(call)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        import stripe

        try:
            return call(*args, **kwargs)
        except stripe.InvalidRequestError as error:
            if error.http_status in (409, 429):  # Stripe's own locks and limits
                raise
            logger.warning("Stripe %s: refused: %s", call.__name__, error.code or "refused")
            raise RefundRejected(str(error.code or "refused")[:64]) from error

    return wrapper


class Refunds:
    """Calls about refunds. All raise PaymentProviderUnavailable."""

    def __init__(self, client: stripe.StripeClient) -> None:
        self._client = client

    @_judged
    def create(self, *, refund_id: UUID, payment_intent_id: str, amount_cents: int) -> Refund:
        """Send a part of a payment back to its card, once per `refund_id`. Raises RefundRejected."""
        refund = self._client.v1.refunds.create(
            {
                "payment_intent": payment_intent_id,
                "amount": amount_cents,
                "reason": "requested_by_customer",
                "metadata": {"refund_id": str(refund_id)},
            },
            {"idempotency_key": f"refund:{refund_id}"},
        )
        return _parse(refund)

    @translated
    def find(self, *, refund_id: UUID, payment_intent_id: str) -> Refund | None:
        """Look for a refund whose answer was lost, among the newest of its payment."""
        page = self._client.v1.refunds.list({"payment_intent": payment_intent_id, "limit": _LISTED})
        for found, _number in zip(pages(page), range(_LISTED), strict=False):
            refund = _parse(found)
            if refund.refund_id == str(refund_id):
                return refund
        return None

    @translated
    def retrieve(self, stripe_refund_id: str) -> Refund:
        """Fetch a refund as it is now."""
        return _parse(self._client.v1.refunds.retrieve(stripe_refund_id))


def _parse(refund: Any) -> Refund:
    metadata = refund.metadata or {}
    return Refund(
        id=refund.id,
        refund_id=str(metadata["refund_id"]) if "refund_id" in metadata else "",
        status=str(refund.status or "pending"),
        amount_cents=refund.amount,
        currency=refund.currency,
        failure=str(getattr(refund, "failure_reason", None) or "")[:64],
        balance_transaction_id=reference_id(refund.balance_transaction),
        return_balance_transaction_id=reference_id(getattr(refund, "failure_balance_transaction", None)),
    )
