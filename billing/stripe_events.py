"""The events of Stripe that the platform acts on: type by type, from the object as it is now."""

from __future__ import annotations

from collections.abc import Callable

from billing.models import TopUp
from billing.stripe import StripeGateway
from billing.top_ups import credit_top_up, fail_top_up, record_stripe_fee

Handler = Callable[[str, StripeGateway], None]  # takes the id of the event's object; may run twice, in any order


def _session_event(session_id: str, gateway: StripeGateway) -> None:
    credit_top_up(session=gateway.checkout.retrieve(session_id))


def _failed_session_event(session_id: str, gateway: StripeGateway) -> None:
    session = gateway.checkout.retrieve(session_id)
    if session.payment_status != "paid":
        fail_top_up(session=session)


def _charge_event(charge_id: str, gateway: StripeGateway) -> None:
    charge = gateway.charges.retrieve(charge_id)
    ours = TopUp.objects.filter(payment_intent_id=charge.payment_intent_id, state=TopUp.State.CREDITED).exists()
    if ours and charge.fee is not None:
        record_stripe_fee(fee=charge.fee)


# The webhook endpoint at Stripe subscribes to these types, and catch-up asks for them.
HANDLERS: dict[str, Handler] = {
    "checkout.session.completed": _session_event,
    "checkout.session.async_payment_succeeded": _session_event,
    "checkout.session.async_payment_failed": _failed_session_event,
    "checkout.session.expired": _session_event,
    "charge.updated": _charge_event,
}
