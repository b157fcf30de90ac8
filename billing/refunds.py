"""Refunds of top-ups: unspent credit goes back to the card that paid for it, with its part of the tax.

The credit leaves first, and then Stripe is asked under one idempotency key, so that credit is never both spent and paid
back. No database transaction is open during a call to Stripe. docs/payments.md explains the states.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Q, Sum
from django.utils import timezone

from billing.cash import record_movement
from billing.errors import (
    AmountNotRefundable,
    PaymentMismatch,
    PaymentProviderUnavailable,
    RefundsFrozen,
    RequestIdReused,
    TopUpNotFound,
)
from billing.ledger import Line, get_account, post_transaction, record_incident
from billing.locks import lock_account, lock_refund, lock_top_up
from billing.models import Account, AutoTopUp, Dispute, Incident, LedgerTransaction, Lot, TopUp, TopUpRefund
from billing.notices import tell_members
from billing.pricing import NANO_PER_CENT
from billing.stripe import StripeGateway, stripe_gateway
from billing.stripe.calls import CURRENCY
from billing.stripe.refunds import Refund, RefundRejected
from marketplace.accounts import audit
from marketplace.accounts.models import Organization
from protocol.money import CENTS, usd

logger = logging.getLogger(__name__)

State = TopUpRefund.State
MAX_REFUNDS = 50  # of one payment: a lost answer is looked for among them
FIRST_LOOK = timedelta(minutes=1)  # the first look at Stripe's answer is the caller's
_ENDED = ("failed", "canceled")


def refundable_cents(top_up: TopUp) -> int:
    """Return how many cents of a top-up can go back now: paid, not spent, not set aside by open holds or disputes."""
    if top_up.state != TopUp.State.CREDITED or top_up.payment_intent_id is None:
        return 0
    lot = lot_of(top_up)
    if lot is None:
        return 0
    credit, _tax = given_back(top_up)
    wallet = Account.objects.get(pk=lot.account_id)
    return max(0, min(min(lot.remaining, wallet.available) // NANO_PER_CENT, top_up.amount_cents - credit))


def refund_freezes(organization: Organization) -> list[str]:
    """Return why no money can go back to `organization` now, as sentences for its members; empty: refunds leave."""
    reasons = []
    disputes = Dispute.objects.filter(top_up__organization=organization, state=Dispute.State.OPEN)
    if disputes.exclude(status__startswith="warning_").exists():  # a refund is the best answer to an inquiry
        reasons.append("A bank disputes a payment of this organization; refunds wait until it has decided.")
    if Incident.objects.filter(kind__in=Incident.FREEZING, resolved_at=None).exists():
        reasons.append("Our books and Stripe's do not agree, and a person is looking at it; no money leaves now.")
    return reasons


def tax_back_cents(top_up: TopUp, amount_cents: int) -> int:
    """Return the tax that goes back with `amount_cents` of credit, rounded so that all parts sum to the whole tax."""
    credit, tax = given_back(top_up)
    whole = _rounded(top_up.tax_cents * (credit + amount_cents), top_up.amount_cents)
    return min(max(whole - tax, 0), top_up.tax_cents - tax)


def disputed_parts(top_up: TopUp, amount_cents: int) -> tuple[int, int]:
    """Divide an amount that a bank takes back, tax included, into credit and tax of the top-up, in cents.

    They are less than the amount when a part of the payment had gone back before.
    """
    credit, tax = given_back(top_up)
    credit_left, tax_left = top_up.amount_cents - credit, top_up.tax_cents - tax
    whole = _rounded(top_up.tax_cents * (credit + tax + amount_cents), top_up.amount_cents + top_up.tax_cents)
    taxed = min(max(whole - tax, 0), tax_left, amount_cents)
    from_credit = min(amount_cents - taxed, credit_left)
    return from_credit, min(amount_cents - from_credit, tax_left)


def given_back(top_up: TopUp) -> tuple[int, int]:
    """Return the credit and the tax that refunds and disputes took back already, in cents.

    Refunds that failed and disputes that were won took nothing.
    """
    refunds = TopUpRefund.objects.filter(~Q(state=State.FAILED), top_up=top_up)
    disputes = Dispute.objects.filter(~Q(state=Dispute.State.WON), top_up=top_up)
    refunded = refunds.aggregate(credit=Sum("amount_cents", default=0), tax=Sum("tax_cents", default=0))
    disputed = disputes.aggregate(credit=Sum("credit_cents", default=0), tax=Sum("tax_cents", default=0))
    return refunded["credit"] + disputed["credit"], refunded["tax"] + disputed["tax"]


def lot_of(top_up: TopUp) -> Lot | None:
    """Return the credit that a top-up brought, or None: all of it was spent before there were lots."""
    return Lot.objects.filter(transaction_id=top_up.ledger_transaction_id, kind=Lot.Kind.PAID).first()


def refunds_of(organization: Organization, *, limit: int = 200) -> list[TopUpRefund]:
    """Return the refunds of `organization`, newest first, with their top-ups."""
    found = TopUpRefund.objects.filter(top_up__organization=organization).select_related("top_up")
    return list(found.order_by("-created_at", "-id")[:limit])


def refund_top_up(
    *,
    organization: Organization,
    top_up_id: UUID,
    amount_cents: int,
    request_id: UUID,
    gateway: StripeGateway | None = None,
) -> TopUpRefund:
    """Give `amount_cents` of a top-up's credit back to its card, with its part of the tax, once per `request_id`.

    The answer is `sent` when Stripe has sent the money, and `failed`, with the credit back, when Stripe refused. It is
    `requested` when Stripe's answer was lost or is not final: a task asks again. Raises TopUpNotFound,
    AmountNotRefundable, RefundsFrozen, RequestIdReused; nothing moved then.
    """
    refund = _take_credit(organization, top_up_id, amount_cents, request_id)
    try:
        return advance_refund(refund_id=refund.pk, gateway=gateway)
    except PaymentProviderUnavailable:
        logger.warning("refund %s: Stripe's answer was lost; it is asked again", refund.pk)
        return refund


@transaction.atomic
def _take_credit(organization: Organization, top_up_id: UUID, amount_cents: int, request_id: UUID) -> TopUpRefund:
    top_up = lock_top_up(top_up_id)
    if top_up is None or top_up.organization_id != organization.pk or top_up.state != TopUp.State.CREDITED:
        raise TopUpNotFound
    earlier = TopUpRefund.objects.filter(pk=request_id).first()
    if earlier is not None:
        if (earlier.top_up_id, earlier.amount_cents) != (top_up.pk, amount_cents):
            raise RequestIdReused
        return earlier
    frozen = refund_freezes(organization)
    if top_up.refunds.count() >= MAX_REFUNDS:
        frozen.append(f"This payment has {MAX_REFUNDS} refunds already; ask support for another.")
    if frozen:
        raise RefundsFrozen(frozen)
    wallet = lock_account(get_account(kind=Account.Kind.CUSTOMER_CREDIT, organization=organization))
    refundable = refundable_cents(top_up)
    if type(amount_cents) is not int or not 0 < amount_cents <= refundable:
        raise AmountNotRefundable(amount_cents, refundable)
    if _would_be_bought_again(organization, wallet.available - amount_cents * NANO_PER_CENT):
        raise RefundsFrozen(["Automatic top-ups are on, and would buy this credit again: turn them off first."])
    tax_cents = tax_back_cents(top_up, amount_cents)
    cents = {"amount_cents": amount_cents}
    audit.record(organization=organization, act="top_up.refunded", subject=str(top_up.pk), data=cents)
    moved = post_transaction(
        kind=LedgerTransaction.Kind.TOP_UP_REFUND,
        reference=str(request_id),
        lines=_lines(wallet, lot_of(top_up), amount_cents, tax_cents),
    )
    return TopUpRefund.objects.create(
        id=request_id,
        top_up=top_up,
        amount_cents=amount_cents,
        tax_cents=tax_cents,
        ledger_transaction=moved,
        next_check_at=timezone.now() + FIRST_LOOK,
    )


def _would_be_bought_again(organization: Organization, available: int) -> bool:
    rule = AutoTopUp.objects.filter(organization=organization, state__in=["on", "waiting"]).first()
    return rule is not None and available < rule.threshold_cents * NANO_PER_CENT


def _lines(wallet: Account, lot: Lot | None, amount_cents: int, tax_cents: int) -> list[Line]:
    """Return the entries of credit and tax that leave; negative amounts come back."""
    amount, tax = amount_cents * NANO_PER_CENT, tax_cents * NANO_PER_CENT
    return [
        Line(wallet, -amount, lot),
        Line(get_account(kind=Account.Kind.TAX), -tax),
        Line(get_account(kind=Account.Kind.CLEARING), amount + tax),
    ]


def advance_refund(*, refund_id: UUID, gateway: StripeGateway | None = None) -> TopUpRefund:
    """Ask Stripe for a refund, or how it is now, and act on the answer. Idempotent.

    Raises PaymentProviderUnavailable (ask again), PaymentMismatch (an incident is open).
    """
    gateway = gateway or stripe_gateway()
    refund = TopUpRefund.objects.select_related("top_up").get(pk=refund_id)
    intent_id = refund.top_up.payment_intent_id
    assert intent_id is not None, "only a payment that arrived is refunded"
    if refund.stripe_refund_id is not None:
        found = gateway.refunds.retrieve(refund.stripe_refund_id)
    elif refund.state != State.REQUESTED:
        return refund
    else:
        # Stripe forgets a key after a day: a refund that it may know is looked for first.
        known = gateway.refunds.find(refund_id=refund.pk, payment_intent_id=intent_id) if refund.checks else None
        try:
            found = known or gateway.refunds.create(
                refund_id=refund.pk,
                payment_intent_id=intent_id,
                amount_cents=refund.amount_cents + refund.tax_cents,
            )
        except RefundRejected as refusal:
            _fail_unsent(refund.pk, refusal.reason)
            refund.refresh_from_db()
            return refund
    return take_refund(refund=found) or refund


def take_refund(*, refund: Refund) -> TopUpRefund | None:
    """Move our refund forward to what Stripe says now, and book the money that moved there. Idempotent.

    Returns None for a refund that the platform did not ask for. Raises PaymentMismatch for one of another amount.
    """
    try:
        refund_id = UUID(refund.refund_id)
    except ValueError:
        return None
    with transaction.atomic():
        ours = lock_refund(refund_id)
        if ours is None:
            return None
        asked = (ours.amount_cents + ours.tax_cents, CURRENCY)
        if (refund.amount_cents, refund.currency) == asked and ours.stripe_refund_id in (None, refund.id):
            ours.stripe_refund_id = refund.id
            if refund.status in _ENDED and ours.state != State.FAILED:
                _give_back(ours, refund.failure or refund.status)
            elif refund.status == "succeeded" and ours.state == State.REQUESTED:
                ours.state, ours.sent_at = State.SENT, timezone.now()
            ours.save()
            _book_movements(ours, refund)
            return ours
    error = f"refund {refund.id} is not the one that was asked for as {refund_id}"
    record_incident(kind=Incident.Kind.PAYMENT_MISMATCH, subject=refund.id[:64], detail={"error": error})
    raise PaymentMismatch(error)


def _book_movements(ours: TopUpRefund, refund: Refund) -> None:
    gross, memo = ours.amount_cents + ours.tax_cents, f"refund {ours.pk}"
    if refund.balance_transaction_id is not None:
        record_movement(balance_transaction_id=refund.balance_transaction_id, amount_cents=-gross, memo=memo)
    if refund.return_balance_transaction_id is not None:
        record_movement(balance_transaction_id=refund.return_balance_transaction_id, amount_cents=gross, memo=memo)


@transaction.atomic
def _fail_unsent(refund_id: UUID, reason: str) -> None:
    """Give the credit of a refund back that Stripe refused. One that Stripe knows after all is left alone."""
    ours = lock_refund(refund_id)
    if ours is not None and ours.state == State.REQUESTED and ours.stripe_refund_id is None:
        _give_back(ours, reason)
        ours.save()


def _give_back(ours: TopUpRefund, reason: str) -> None:
    """Return the credit of a refund that did not arrive; the caller has locked it, and saves it."""
    organization = ours.top_up.organization
    wallet = get_account(kind=Account.Kind.CUSTOMER_CREDIT, organization=organization)
    post_transaction(
        kind=LedgerTransaction.Kind.REFUND_RETURNED,
        reference=str(ours.pk),
        lines=_lines(wallet, lot_of(ours.top_up), -ours.amount_cents, -ours.tax_cents),
        memo=reason,
    )
    ours.state, ours.failed_at, ours.failure = State.FAILED, timezone.now(), reason
    text = (
        f"A refund of {usd(ours.amount_cents + ours.tax_cents, CENTS)} did not arrive at your card ({reason}). "
        "The credit is back in your wallet: you can spend it, or ask for the refund again."
    )
    tell_members(
        organization,
        kind="wallet.refund_failed",
        once=str(ours.pk),
        subject="A refund did not arrive",
        text=text,
        data={"refund_id": str(ours.pk), "amount_cents": ours.amount_cents + ours.tax_cents},
    )


def _rounded(part: int, whole: int) -> int:
    """Return part / whole, rounded half up."""
    return (2 * part + whole) // (2 * whole)
