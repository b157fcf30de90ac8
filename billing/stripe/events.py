"""Events at Stripe: posted to our webhook with a signature, or asked for when none came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from billing.errors import BillingError
from billing.stripe.calls import MAX_ID, pages, short_name, translated

if TYPE_CHECKING:
    import stripe

WEBHOOK_TOLERANCE_SECONDS = 300
MAX_EVENT_TYPE = 100  # characters
MAX_TYPES = 20  # of one list at Stripe


class InvalidWebhookSignature(BillingError):
    """The webhook was not signed by Stripe with our secret, or too long ago."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened to an object at Stripe; the object is fetched when the event is processed."""

    id: str
    type: str
    object_id: str  # empty for an object without an id, such as a balance


class Events:
    """Calls about events."""

    def __init__(self, client: stripe.StripeClient, *, webhook_secret: str) -> None:
        self._client = client
        self._webhook_secret = webhook_secret

    @translated
    def undelivered(self, *, types: Sequence[str], since: int, limit: int) -> list[Event]:
        """List events since the unix time `since` that no webhook has delivered. Raises PaymentProviderUnavailable."""
        found: list[Event] = []
        for start in range(0, len(types), MAX_TYPES):
            page = self._client.v1.events.list(
                {
                    "types": list(types[start : start + MAX_TYPES]),
                    "created": {"gte": since},
                    "delivery_success": False,
                    "limit": min(limit, 100),
                }
            )
            found += [_event(event) for event, _number in zip(pages(page), range(limit), strict=False)]
        return found[:limit]

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


def _event(event: Any) -> Event:
    """Read the three values that are kept. Raises ValueError, AttributeError or LookupError for what is no event."""
    return Event(
        id=short_name(event.id, MAX_ID),
        type=short_name(event.type, MAX_EVENT_TYPE),
        object_id=_object_id(event.data.object),
    )


def _object_id(subject: Any) -> str:
    """Return the id of an event's object, or "": a balance, for example, has none."""
    found = getattr(subject, "id", None)
    return "" if found is None else short_name(found, MAX_ID)
