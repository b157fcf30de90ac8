"""Buying credit: a checkout page at Stripe, and one ledger transaction when it is paid.

No database transaction is open during a call to Stripe. Every piece of news about a payment (webhook, catch-up, the
customer coming back) leads to `credit_top_up`, which moves a top-up only forward and credits it once.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from datetime import timedelta
from uuid import UUID, uuid4

from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from billing.card_uses import note_payment
from billing.cash import record_stripe_fee
from billing.errors import InvalidTopUpAmount, PaymentMismatch, RequestIdReused, TooManyAttempts
from billing.ledger import Line, get_account, post_transaction, record_incident
from billing.locks import lock_accounts, lock_top_up
from billing.lots import deposit
from billing.models import Account, AutoTopUp, Incident, LedgerTransaction, Lot, Outbox, PaymentDetail, TopUp
from billing.models.payments import MAX_TOP_UP_CENTS, MIN_TOP_UP_CENTS
from billing.pricing import NANO_PER_CENT
from billing.stripe import StripeGateway, stripe_gateway, tax
from billing.stripe.calls import CURRENCY
from billing.stripe.cards import CardPayment
from billing.stripe.checkout import CheckoutSession
from marketplace.accounts.features import require_on
from marketplace.accounts.models import Organization
from marketplace.accounts.suspension import require_not_suspended
from marketplace.accounts.verification import require_verified

logger = logging.getLogger(__name__)

ATTEMPT_WINDOW = timedelta(hours=24)
# Payments that may be begun within it and not be paid, by an organization that has never paid and by one that has.
MAX_FIRST_ATTEMPTS, MAX_ATTEMPTS = 10, 50
CHECKOUT_LIFETIME = timedelta(hours=24)  # Stripe closes a page that was not paid


def start_top_up(
    *,
    organization: Organization,
    amount_cents: int,
    success_url: str,
    cancel_url: str,
    top_up_id: UUID | None = None,
    by: UUID | None = None,
    gateway: StripeGateway | None = None,
) -> TopUp:
    """Open a checkout page for `amount_cents`; the customer pays at `checkout_url` of the answer.

    `top_up_id` is for a caller whose URLs name the top-up. Called again with the same one, it returns the same top-up,
    and opens its page if Stripe's answer was lost the first time. `by` is the id of the person who pays. Raises
    EmailUnverified, InvalidTopUpAmount, RequestIdReused, TooManyAttempts, NotAllowed for a suspended organization,
    Refusal 503 while top-ups are switched off, and PaymentProviderUnavailable (no money moved; try again).
    """
    require_verified(by=by)
    if type(amount_cents) is not int or not MIN_TOP_UP_CENTS <= amount_cents <= MAX_TOP_UP_CENTS:
        raise InvalidTopUpAmount(amount_cents, MIN_TOP_UP_CENTS, MAX_TOP_UP_CENTS)
    require_not_suspended(organization.pk)
    if top_up_id is None or not TopUp.objects.filter(pk=top_up_id).exists():
        require_on("top-ups", organization.pk)
        _check_attempts(organization)
    top_up, created = TopUp.objects.get_or_create(
        id=top_up_id or uuid4(), defaults={"organization": organization, "amount_cents": amount_cents}
    )
    if (top_up.organization_id, top_up.amount_cents) != (organization.pk, amount_cents):
        raise RequestIdReused
    if not created and (top_up.checkout_session_id is not None or top_up.state != TopUp.State.CREATED):
        return top_up
    session = (gateway or stripe_gateway()).checkout.create(
        top_up_id=top_up.pk,
        organization_id=organization.pk,
        amount_cents=amount_cents,
        success_url=success_url,
        cancel_url=cancel_url,
    )
    # The state guards this write: the webhook of a fast payer may have credited the top-up by now.
    TopUp.objects.filter(pk=top_up.pk, state=TopUp.State.CREATED).update(state=TopUp.State.PENDING)
    TopUp.objects.filter(pk=top_up.pk).update(checkout_session_id=session.id, checkout_url=session.url)
    top_up.refresh_from_db()
    return top_up


def _check_attempts(organization: Organization) -> None:
    """Raise TooManyAttempts where too many payments of the last day were begun and not paid."""
    own = TopUp.objects.filter(organization=organization)
    most = MAX_ATTEMPTS if own.filter(state=TopUp.State.CREDITED).exists() else MAX_FIRST_ATTEMPTS
    unpaid = own.filter(created_at__gt=timezone.now() - ATTEMPT_WINDOW).exclude(state=TopUp.State.CREDITED)
    if unpaid.count() >= most:
        message = (
            f"{most} payments were begun within a day and not paid. No money moved; pay one of them, or wait a day."
        )
        raise TooManyAttempts(message, headers={"retry-after": str(int(ATTEMPT_WINDOW.total_seconds()))})


def refresh_top_up(*, top_up_id: UUID, gateway: StripeGateway | None = None) -> TopUp:
    """Ask Stripe now, when the customer comes back before the webhook does, or when no webhook came.

    Raises PaymentProviderUnavailable, PaymentMismatch.
    """
    top_up = TopUp.objects.get(pk=top_up_id)
    if top_up.checkout_session_id is None:
        # The answer of Stripe was lost, so the customer never saw a page; one that exists has closed by itself.
        lost = TopUp.objects.filter(pk=top_up_id, state=TopUp.State.CREATED, checkout_session_id=None, card=None)
        lost.filter(created_at__lte=Now() - CHECKOUT_LIFETIME).update(state=TopUp.State.EXPIRED)
    elif top_up.state != TopUp.State.CREDITED:
        session = (gateway or stripe_gateway()).checkout.retrieve(top_up.checkout_session_id)
        credit_top_up(session=session)
    top_up.refresh_from_db()
    return top_up


def cancel_top_up(*, top_up_id: UUID, gateway: StripeGateway | None = None) -> TopUp:
    """Close the payment page of a top-up that waits, so that it cannot be paid any more. Idempotent.

    A top-up that was paid in the meantime is credited; one whose slow payment is under way keeps waiting. Raises
    PaymentProviderUnavailable (the page is as it was), PaymentMismatch.
    """
    top_up = TopUp.objects.get(pk=top_up_id)
    if top_up.state == TopUp.State.PENDING and top_up.checkout_session_id is not None:
        gateway = gateway or stripe_gateway()
        gateway.checkout.close(top_up.checkout_session_id)
        credit_top_up(session=gateway.checkout.retrieve(top_up.checkout_session_id))
        top_up.refresh_from_db()
    return top_up


def credit_top_up(*, session: CheckoutSession) -> TopUp | None:
    """Move the top-up of a checkout page forward, and credit it once if the page is paid. Idempotent.

    Returns None for a page that names no top-up of ours. A paid page with another amount credits nothing, opens an
    incident and raises PaymentMismatch.
    """
    try:
        top_up_id = UUID(session.client_reference_id)
    except ValueError:
        return None
    try:
        return _move_forward(top_up_id, session)
    except PaymentMismatch as error:
        # Outside the transaction, which was rolled back.
        record_incident(kind=Incident.Kind.PAYMENT_MISMATCH, subject=session.id[:64], detail={"error": str(error)})
        raise


@transaction.atomic
def _move_forward(top_up_id: UUID, session: CheckoutSession) -> TopUp | None:
    top_up = lock_top_up(top_up_id)
    if top_up is None:
        logger.warning("Stripe session %s names no top-up of ours", session.id)
        return None
    if top_up.checkout_session_id not in (None, session.id):
        if session.payment_status == "paid":
            raise PaymentMismatch(f"top-up {top_up.pk} belongs to another checkout page than {session.id}")
        return top_up
    if session.payment_status == "paid" and top_up.state != TopUp.State.CREDITED:
        _credit(top_up, _paid_on_page(session))
    elif top_up.state in TopUp.WAITING:
        # A complete page that is not paid waits for a slow payment method.
        top_up.state = TopUp.State.EXPIRED if session.status == "expired" else TopUp.State.PENDING
    top_up.checkout_session_id = session.id
    top_up.payment_intent_id = session.payment_intent_id
    top_up.save()
    if top_up.state == TopUp.State.CREDITED:
        note_payment(top_up=top_up, charge=session.charge)
    if top_up.card_id is not None and top_up.state not in TopUp.WAITING:
        # The page stood in for a card whose bank asked its holder: automatic top-ups go on, or stop.
        paid = top_up.state == TopUp.State.CREDITED
        AutoTopUp.objects.filter(pk=top_up.organization_id, state=AutoTopUp.State.WAITING).update(
            state=AutoTopUp.State.ON if paid else AutoTopUp.State.STOPPED, failures=0
        )
    if top_up.state == TopUp.State.CREDITED and session.charge is not None and session.charge.fee is not None:
        record_stripe_fee(fee=session.charge.fee)
    return top_up


def credit_card_payment(*, payment: CardPayment) -> TopUp | None:
    """Credit the top-up of a payment with a saved card once, if it succeeded. Idempotent.

    Returns the top-up as it is then, or None for a payment of none of ours. A payment of another amount credits
    nothing, opens an incident and raises PaymentMismatch.
    """
    try:
        top_up_id = UUID(payment.top_up_id)
    except ValueError:
        return None
    try:
        with transaction.atomic():
            top_up = lock_top_up(top_up_id)
            if top_up is None or top_up.card_id is None:
                return None
            if payment.succeeded and top_up.state != TopUp.State.CREDITED:
                _credit(top_up, _Paid(payment.intent_id, payment.amount_cents, payment.currency))
                top_up.payment_intent_id = payment.intent_id
                top_up.save()
            if payment.succeeded and top_up.payment_intent_id != payment.intent_id:
                raise PaymentMismatch(f"top-up {top_up.pk} was paid twice, also by {payment.intent_id}")
            if payment.succeeded:
                note_payment(top_up=top_up, charge=payment.charge)
            if payment.charge is not None and payment.charge.fee is not None:
                record_stripe_fee(fee=payment.charge.fee)
            return top_up
    except PaymentMismatch as error:
        # Outside the transaction, which was rolled back.
        detail = {"error": str(error)}
        record_incident(kind=Incident.Kind.PAYMENT_MISMATCH, subject=payment.intent_id[:64], detail=detail)
        raise


@dataclass(frozen=True, slots=True)
class _Paid:
    """Money that Stripe took for a top-up, in cents."""

    reference: str  # the page or the payment at Stripe
    total_cents: int
    currency: str
    tax_cents: int = 0
    payer: tax.Payer | None = None
    taxes: tuple[tax.TaxAmount, ...] = ()


def _paid_on_page(session: CheckoutSession) -> _Paid:
    return _Paid(
        session.id,
        session.amount_total_cents,
        session.currency,
        session.amount_tax_cents,
        session.payer,
        session.taxes,
    )


def _credit(top_up: TopUp, paid: _Paid) -> None:
    net_cents = paid.total_cents - paid.tax_cents
    if (net_cents, paid.currency) != (top_up.amount_cents, CURRENCY) or paid.tax_cents < 0:
        raise PaymentMismatch(
            f"top-up {top_up.pk} asked for {top_up.amount_cents} {CURRENCY} cents, "
            f"Stripe took {paid.total_cents} {paid.currency}, of which {paid.tax_cents} are tax"
        )
    amount = top_up.amount_cents * NANO_PER_CENT
    if paid.tax_cents:
        # Two transactions follow; refunds lock the same accounts, in the order of the chart as well.
        lock_accounts(
            [
                get_account(kind=Account.Kind.CUSTOMER_CREDIT, organization=top_up.organization),
                get_account(kind=Account.Kind.TAX),
                get_account(kind=Account.Kind.STRIPE_CASH),
            ]
        )
    top_up.ledger_transaction = deposit(
        organization=top_up.organization,
        amount_nano_usd=amount,
        source=Account.Kind.STRIPE_CASH,
        lot_kind=Lot.Kind.PAID,
        kind=LedgerTransaction.Kind.TOP_UP,
        reference=str(top_up.pk),
        memo=paid.reference,
    )
    top_up.tax_cents = paid.tax_cents
    _book_tax(top_up)
    PaymentDetail.objects.create(  # the receipt says it (billing/papers)
        top_up=top_up,
        payer=asdict(paid.payer) if paid.payer else None,
        taxes=[asdict(amount) for amount in paid.taxes],
    )
    top_up.state = TopUp.State.CREDITED
    top_up.credited_at = timezone.now()
    announce(top_up, Outbox.Topic.TOP_UP_CREDITED)


def _book_tax(top_up: TopUp) -> None:
    """Book the tax that was paid on top: it is at Stripe, and a tax office's."""
    if top_up.tax_cents:
        amount = top_up.tax_cents * NANO_PER_CENT
        post_transaction(
            kind=LedgerTransaction.Kind.TAX,
            reference=str(top_up.pk),
            lines=[
                Line(get_account(kind=Account.Kind.TAX), amount),
                Line(get_account(kind=Account.Kind.STRIPE_CASH), -amount),
            ],
        )


@transaction.atomic
def fail_top_up(*, session: CheckoutSession) -> None:
    """Note that a slow payment method failed in the end. A credited top-up stays credited: its page was paid."""
    waiting = TopUp.objects.filter(checkout_session_id=session.id, state__in=TopUp.WAITING)
    for top_up in waiting:
        if waiting.filter(pk=top_up.pk).update(state=TopUp.State.FAILED):
            announce(top_up, Outbox.Topic.TOP_UP_FAILED)


def announce(top_up: TopUp, topic: Outbox.Topic) -> None:
    """Note the end of a top-up for whoever listens, in the transaction that brings it about."""
    payload = {
        "top_up_id": str(top_up.pk),
        "organization_id": str(top_up.organization_id),
        "amount_nano_usd": top_up.amount_cents * NANO_PER_CENT,
    }
    Outbox.objects.create(topic=topic, key=str(top_up.pk), payload=payload)
