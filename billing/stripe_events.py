"""The events of Stripe that the platform acts on: type by type, from the object as it is now."""

from __future__ import annotations

from collections.abc import Callable

from billing.auto_top_ups import take_card_payment
from billing.card_uses import note_payment
from billing.cards import save_card
from billing.cash import record_stripe_fee
from billing.disputes.services import refresh_dispute
from billing.models import Payout, PayoutAccount, TopUp
from billing.payouts.accounts import refresh_account
from billing.payouts.services import advance_payout
from billing.refunds import take_refund
from billing.stripe import StripeGateway
from billing.top_ups import credit_top_up, fail_top_up

Handler = Callable[[str, StripeGateway], None]  # takes the id of the event's object; may run twice, in any order


def _session_event(session_id: str, gateway: StripeGateway) -> None:
    session = gateway.checkout.retrieve(session_id)
    if session.mode == "setup":
        save_card(session_id=session_id, gateway=gateway)
        return
    credit_top_up(session=session)


def _card_payment_event(intent_id: str, gateway: StripeGateway) -> None:
    take_card_payment(payment=gateway.cards.retrieve_payment(intent_id), gateway=gateway)


def _failed_session_event(session_id: str, gateway: StripeGateway) -> None:
    session = gateway.checkout.retrieve(session_id)
    if session.payment_status != "paid":
        fail_top_up(session=session)


def _charge_event(charge_id: str, gateway: StripeGateway) -> None:
    charge = gateway.charges.retrieve(charge_id)
    ours = TopUp.objects.filter(payment_intent_id=charge.payment_intent_id, state=TopUp.State.CREDITED).first()
    if ours is None:
        return
    note_payment(top_up=ours, charge=charge)
    if charge.fee is not None:
        record_stripe_fee(fee=charge.fee)


def _refund_event(stripe_refund_id: str, gateway: StripeGateway) -> None:
    take_refund(refund=gateway.refunds.retrieve(stripe_refund_id))


def _dispute_event(dispute_id: str, gateway: StripeGateway) -> None:
    refresh_dispute(dispute_id=dispute_id, gateway=gateway)


def _account_event(account_id: str, gateway: StripeGateway) -> None:
    account = PayoutAccount.objects.filter(stripe_account_id=account_id).first()
    if account is not None:
        refresh_account(organization_id=account.pk, gateway=gateway)


def _transfer_event(transfer_id: str, gateway: StripeGateway) -> None:
    payout = Payout.objects.filter(transfer_id=transfer_id).first()
    if payout is not None:
        advance_payout(payout_id=payout.pk, gateway=gateway)


def _bank_payout_event(bank_payout_id: str, gateway: StripeGateway) -> None:
    payout = Payout.objects.filter(bank_payout_id=bank_payout_id).first()
    if payout is not None:  # one whose id is not known yet is asked about by `advance_payouts`
        advance_payout(payout_id=payout.pk, gateway=gateway)


# The webhook endpoint at Stripe subscribes to these types, and catch-up asks for them.
HANDLERS: dict[str, Handler] = {
    "checkout.session.completed": _session_event,
    "checkout.session.async_payment_succeeded": _session_event,
    "checkout.session.async_payment_failed": _failed_session_event,
    "checkout.session.expired": _session_event,
    "charge.updated": _charge_event,
    "charge.dispute.created": _dispute_event,
    "charge.dispute.updated": _dispute_event,
    "charge.dispute.closed": _dispute_event,
    "charge.dispute.funds_withdrawn": _dispute_event,
    "charge.dispute.funds_reinstated": _dispute_event,
    "refund.created": _refund_event,
    "refund.updated": _refund_event,
    "refund.failed": _refund_event,
    "payment_intent.succeeded": _card_payment_event,
    "payment_intent.payment_failed": _card_payment_event,
    "account.updated": _account_event,
    "transfer.reversed": _transfer_event,
    "payout.paid": _bank_payout_event,
    "payout.failed": _bank_payout_event,
    "payout.canceled": _bank_payout_event,
}
