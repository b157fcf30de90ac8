"""A dispute's way: the bank takes a payment back, the rest of its credit is frozen, and the bank decides.

Every piece of news leads to `refresh_dispute`, which fetches the dispute and moves ours only forward, so the order and
number of events do not matter. No database transaction is open during a call to Stripe.
"""

from __future__ import annotations

import logging
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from billing.cash import record_movement, record_stripe_fee
from billing.disputes.books import book_loss, freeze_rest, give_back_frozen
from billing.disputes.recovery import recover
from billing.errors import BillingError, PaymentMismatch
from billing.ledger import record_incident
from billing.locks import lock_dispute, lock_top_up
from billing.models import AutoTopUp, Dispute, Incident, Lot, TopUp
from billing.notices import tell_members
from billing.refunds import disputed_parts
from billing.stripe import StripeGateway, stripe_gateway
from billing.stripe.calls import CURRENCY
from billing.stripe.charges import StripeFee
from billing.stripe.disputes import DisputedPayment
from billing.top_ups import credit_card_payment, refresh_top_up
from protocol.money import CENTS, usd

logger = logging.getLogger(__name__)

State = Dispute.State
_BATCH = 200


def refresh_dispute(*, dispute_id: str, gateway: StripeGateway | None = None) -> Dispute | None:
    """Fetch a dispute at Stripe, and move ours and the books to what it is now. Idempotent.

    Returns None for a payment that is not a top-up. Raises PaymentProviderUnavailable, PaymentMismatch (an incident is
    open), and BillingError while the payment is not credited yet: ask again.
    """
    gateway = gateway or stripe_gateway()
    found = gateway.disputes.retrieve(dispute_id)
    top_up = _disputed_top_up(found, gateway)
    return None if top_up is None else take_dispute(found=found, top_up_id=top_up.pk)


def take_dispute(*, found: DisputedPayment, top_up_id: UUID) -> Dispute:
    """Move our dispute forward to what Stripe says now, and book the money that moved there. Idempotent.

    Raises PaymentMismatch when Stripe contradicts what is booked; nothing moved then, and an incident is open.
    """
    try:
        return _move_forward(found, top_up_id)
    except PaymentMismatch as error:
        # Outside the transaction, which was rolled back.
        record_incident(kind=Incident.Kind.PAYMENT_MISMATCH, subject=found.id[:64], detail={"error": str(error)})
        raise


def take_what_came_back() -> int:
    """Take credit of disputed payments that was set aside by holds before, or given back. Returns how much.

    That of an open dispute is frozen, and that of a lost one makes good its loss.
    """
    with_rest = Lot.objects.filter(transaction=OuterRef("top_up__ledger_transaction"), remaining__gt=0)
    found = Dispute.objects.filter(~Q(status__startswith="warning_"), ~Q(state=State.WON), Exists(with_rest))
    taken = 0
    for top_up_id, dispute_id in found.order_by("opened_at", "id").values_list("top_up_id", "id")[:_BATCH]:
        with transaction.atomic():
            lock_top_up(top_up_id)
            dispute = lock_dispute(dispute_id)
            if dispute is not None and dispute.state != State.WON:
                taken += freeze_rest(dispute) if dispute.state == State.OPEN else recover(dispute)
    return taken


def _disputed_top_up(found: DisputedPayment, gateway: StripeGateway) -> TopUp | None:
    """Return the credited top-up of a disputed payment; the event of the payment may come after that of its dispute."""
    credited = TopUp.objects.filter(state=TopUp.State.CREDITED)
    top_up = credited.filter(payment_intent_id=found.payment_intent_id).first() if found.payment_intent_id else None
    if top_up is not None or not found.top_up_id or found.payment_intent_id is None:
        return top_up
    waiting = TopUp.objects.filter(pk=UUID(found.top_up_id)).first()
    if waiting is None:
        logger.warning("Stripe dispute %s names no top-up of ours", found.id)
        return None
    if waiting.card_id is not None:
        credit_card_payment(payment=gateway.cards.retrieve_payment(found.payment_intent_id))
    refresh_top_up(top_up_id=waiting.pk, gateway=gateway)
    top_up = credited.filter(payment_intent_id=found.payment_intent_id).first()
    if top_up is None:
        raise BillingError(f"the payment of dispute {found.id} is not credited yet")
    return top_up


@transaction.atomic
def _move_forward(found: DisputedPayment, top_up_id: UUID) -> Dispute:
    top_up = lock_top_up(top_up_id)
    assert top_up is not None, "top-ups are never deleted"
    if found.currency != CURRENCY:
        raise PaymentMismatch(f"dispute {found.id} is in {found.currency}")
    dispute = lock_dispute(found.id) or _open(top_up, found)
    if dispute.top_up_id != top_up.pk:
        raise PaymentMismatch(f"dispute {found.id} was that of another payment")
    was_inquiry, dispute.status = dispute.is_inquiry, found.status
    if was_inquiry and not dispute.is_inquiry and dispute.state == State.OPEN:
        _set_amount(dispute, found)
    elif not was_inquiry and dispute.amount_cents != found.amount_cents:
        raise PaymentMismatch(f"dispute {found.id} was of {dispute.amount_cents}, and is of {found.amount_cents} cents")
    dispute.evidence_due_at = found.due_at
    if found.submissions and dispute.evidence_sent_at is None:
        dispute.evidence_sent_at = timezone.now()
    dispute.withdrawn_cents = -sum(moved.amount_cents for moved in found.movements)
    dispute.fee_cents = sum(moved.fee_cents for moved in found.movements)
    dispute.save()
    _decide(dispute, found)
    # Last: customers' accounts are locked before cash.
    for moved in found.movements:
        record_movement(
            balance_transaction_id=moved.balance_transaction_id,
            amount_cents=moved.amount_cents,
            memo=f"dispute {found.id}"[:255],
        )
        record_stripe_fee(fee=StripeFee(moved.balance_transaction_id, moved.fee_cents))
    return dispute


def _open(top_up: TopUp, found: DisputedPayment) -> Dispute:
    dispute = Dispute(
        id=found.id, top_up=top_up, amount_cents=found.amount_cents, reason=found.reason, status=found.status
    )
    if not dispute.is_inquiry:
        _set_amount(dispute, found)
    dispute.save(force_insert=True)
    return dispute


def _set_amount(dispute: Dispute, found: DisputedPayment) -> None:
    """The bank takes the money: divide it into credit and tax, stop the card's automatic top-ups, tell the members."""
    top_up = dispute.top_up
    dispute.amount_cents = found.amount_cents
    dispute.credit_cents, dispute.tax_cents = disputed_parts(top_up, found.amount_cents)
    if top_up.card_id is not None:
        AutoTopUp.objects.filter(pk=top_up.organization_id).exclude(state=AutoTopUp.State.OFF).update(
            state=AutoTopUp.State.STOPPED
        )
    text = (
        f"The bank of your card disputes the payment of {top_up.created_at:%Y-%m-%d} and has taken "
        f"{usd(found.amount_cents, CENTS)} back. The rest of its credit is frozen until the bank has decided, and "
        "no payment of yours can be refunded meanwhile. If this is a mistake, ask your bank to withdraw it.\n\n"
        f"{settings.PUBLIC_URL}/dashboard/wallet"
    )
    tell_members(
        top_up.organization,
        kind="wallet.dispute_opened",
        once=str(dispute.pk),
        subject="A payment is disputed",
        text=text,
        data={"dispute_id": str(dispute.pk), "top_up_id": str(top_up.pk), "amount_cents": found.amount_cents},
    )


def _decide(dispute: Dispute, found: DisputedPayment) -> None:
    """Freeze, give back or book the loss, as far as the bank has come."""
    outcome = _outcome(found)
    if dispute.state != State.OPEN:
        if outcome not in (None, dispute.state):
            raise PaymentMismatch(f"dispute {found.id} was {dispute.state}, and Stripe says {found.status}")
        return
    if not dispute.is_inquiry:
        freeze_rest(dispute)
    if outcome is None:
        return
    if outcome == State.WON:
        give_back_frozen(dispute)
    else:
        book_loss(dispute)
    dispute.state, dispute.closed_at = outcome, timezone.now()
    dispute.save()
    if dispute.credit_cents:
        _tell_decision(dispute)


def _tell_decision(dispute: Dispute) -> None:
    won = dispute.state == State.WON
    text = (
        f"The bank has decided about the disputed payment of {dispute.top_up.created_at:%Y-%m-%d}. "
        + (
            "Credit of it that was frozen is back in your wallet."
            if won
            else "It keeps the money, so the payment's credit is gone."
        )
        + f"\n\n{settings.PUBLIC_URL}/dashboard/wallet"
    )
    tell_members(
        dispute.top_up.organization,
        kind="wallet.dispute_closed",
        once=str(dispute.pk),
        subject="A disputed payment is yours again" if won else "A disputed payment is lost",
        text=text,
        data={"dispute_id": str(dispute.pk), "top_up_id": str(dispute.top_up_id), "won": won},
    )


def _outcome(found: DisputedPayment) -> State | None:
    """Return how the bank decided, or None: it has not yet."""
    if found.status in ("won", "warning_closed"):
        return State.WON
    if found.status == "prevented":  # settled between bank and Stripe, with the money or without
        return State.LOST if sum(moved.amount_cents for moved in found.movements) < 0 else State.WON
    return State.LOST if found.status == "lost" else None
