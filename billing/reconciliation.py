"""Reconciliation: every balance transaction at Stripe is one ledger transaction of ours, to the cent, and the reverse.

A difference that outlives `GRACE` opens an incident, and payouts are frozen until a person with a second factor clears
it (`billing.incidents`). Nothing here changes a balance, but for news whose event was lost: Stripe's fee, a refund or a
dispute.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from django.db.models import Case, CharField, Exists, F, Max, Min, OuterRef, Q, Sum, Value, When
from django.db.models.functions import Cast, Concat, Now
from django.utils import timezone

from billing.cash import record_stripe_fee
from billing.disputes.services import refresh_dispute
from billing.errors import BillingError
from billing.ledger import get_account, record_incident
from billing.models import Account, Dispute, Entry, Incident, LedgerTransaction, StripeMovement, TopUp, TopUpRefund
from billing.pricing import NANO_PER_CENT
from billing.refunds import take_refund
from billing.stripe import StripeGateway, stripe_gateway
from billing.stripe.balance import Movement
from billing.stripe.calls import CURRENCY
from billing.stripe.charges import StripeFee

logger = logging.getLogger(__name__)

GRACE = timedelta(hours=6)  # for an event that is late on either side
OVERLAP = timedelta(days=3)  # read again at each run: Stripe may list a movement late
MAX_MOVEMENTS = 100_000  # in one run
_CHARGES = ("charge", "payment")
_REFUNDS = ("refund", "payment_refund", "refund_failure", "payment_failure_refund")
_DISPUTES = ("dp_", "du_")  # ids of disputes
# Beside the transaction of its movement: they have no movement of their own.
_COMPANIONS = (LedgerTransaction.Kind.STRIPE_FEE, LedgerTransaction.Kind.TAX)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The findings of one run: movements read, matched now, waiting within the grace, and incidents opened."""

    read: int
    matched: int
    waiting: int
    incidents: int


def reconcile(*, gateway: StripeGateway | None = None) -> Outcome:
    """Read Stripe's movements since the last run, and match all that are not. Raises PaymentProviderUnavailable.

    Idempotent: a difference has one incident, however often it is found, also after a person has cleared it.
    """
    latest = StripeMovement.objects.aggregate(at=Max("booked_at"))["at"]
    since = 0 if latest is None else int((latest - OVERLAP).timestamp())
    gateway = gateway or stripe_gateway()
    movements = gateway.balance.movements(since=since, limit=MAX_MOVEMENTS)
    StripeMovement.objects.bulk_create([_row(movement) for movement in movements], ignore_conflicts=True)
    matched = sum(_match(row, gateway) for row in StripeMovement.objects.filter(matched_at=None).order_by("booked_at"))
    late = timezone.now() - GRACE
    unmatched = StripeMovement.objects.filter(matched_at=None)
    opened = _report_movements(unmatched.filter(booked_at__lt=late)) + _report_books(late) + _report_stuck()
    return Outcome(len(movements), matched, unmatched.filter(booked_at__gte=late).count(), opened)


def _row(movement: Movement) -> StripeMovement:
    return StripeMovement(
        id=movement.id,
        kind=movement.kind,
        source_id=movement.source_id,
        payment_intent_id=movement.payment_intent_id or "",
        amount_cents=movement.amount_cents,
        fee_cents=movement.fee_cents,
        net_cents=movement.net_cents,
        currency=movement.currency,
        booked_at=movement.booked_at,
    )


def _match(row: StripeMovement, gateway: StripeGateway) -> bool:
    """Match a movement, if the books say the same, and note it."""
    found = _transactions(row)
    if not found and _news_of(row, gateway):
        found = _transactions(row)
    main = [one for one in found if one.kind not in _COMPANIONS]
    if len(main) != 1 or row.currency != CURRENCY or _cash(found) != -row.net_cents * NANO_PER_CENT:
        return False
    StripeMovement.objects.filter(pk=row.pk).update(matched_at=Now(), ledger_transaction=main[0])
    return True


def _transactions(row: StripeMovement) -> list[LedgerTransaction]:
    """Return the ledger transactions that a movement caused."""
    named = Q(entries__account=get_account(kind=Account.Kind.STRIPE_CASH)) & (Q(reference=row.pk) | Q(memo=row.pk))
    if row.kind in _CHARGES:
        top_up = TopUp.objects.filter(payment_intent_id=row.payment_intent_id, state=TopUp.State.CREDITED).first()
        if row.payment_intent_id and top_up is not None:
            # The event with the fee may be lost; the movement says the same.
            record_stripe_fee(fee=StripeFee(row.pk, row.fee_cents))
            named |= Q(pk=top_up.ledger_transaction_id)
            named |= Q(kind=LedgerTransaction.Kind.TAX, reference=str(top_up.pk))
    return list(LedgerTransaction.objects.filter(named).distinct())


def _news_of(row: StripeMovement, gateway: StripeGateway) -> bool:
    """Act on the refund or dispute that moved the money, whose event may be lost; return whether there is one."""
    try:
        if row.kind in _REFUNDS:
            return take_refund(refund=gateway.refunds.retrieve(row.source_id)) is not None
        if row.kind == "adjustment" and row.source_id.startswith(_DISPUTES):
            return refresh_dispute(dispute_id=row.source_id, gateway=gateway) is not None
    except BillingError:
        logger.exception("reconciliation: %s of %s", row.kind, row.source_id)  # the movement stays unmatched
    return False


def _cash(found: Iterable[LedgerTransaction]) -> int:
    entries = Entry.objects.filter(transaction__in=list(found), account__kind=Account.Kind.STRIPE_CASH)
    return int(entries.aggregate(sum=Sum("amount"))["sum"] or 0)


def _report_movements(rows: Iterable[StripeMovement]) -> int:
    opened = 0
    for row in rows:
        cash = _cash(_transactions(row))
        detail = {
            "what": "Stripe moved money, and the books do not say the same",
            "type": row.kind,
            "source": row.source_id,
            "stripe_net_cents": row.net_cents,
            "books_cash_nano_usd": -cash,
        }
        opened += _open(row.pk[:64], detail)
    return opened


def _report_books(late: object) -> int:
    """Open an incident for each ledger transaction on cash at Stripe that no movement there answers to."""
    first = StripeMovement.objects.aggregate(at=Min("booked_at"))["at"]
    if first is None:
        return 0
    cash = Entry.objects.filter(account__kind=Account.Kind.STRIPE_CASH, transaction__stripe_movement=None)
    alone = cash.filter(transaction__created_at__gte=first, transaction__created_at__lt=late)
    opened = 0
    for entry in alone.exclude(transaction__kind__in=_COMPANIONS).select_related("transaction"):
        detail = {
            "what": "the books moved cash at Stripe, and Stripe does not say the same",
            "kind": entry.transaction.kind,
            "reference": entry.transaction.reference,
            "books_cash_nano_usd": -entry.amount,
        }
        opened += _open(f"transaction {entry.transaction_id}", detail)
    return opened


def _report_stuck() -> int:
    """Open an incident for each refund or dispute that ended days ago, and whose money at Stripe says otherwise."""
    long_ago = timezone.now() - OVERLAP
    moved = LedgerTransaction.objects.filter(
        kind=LedgerTransaction.Kind.STRIPE_MOVEMENT, memo=Concat(Value("refund "), OuterRef("refund_name"))
    )
    refunds = TopUpRefund.objects.annotate(refund_name=Cast("pk", CharField()))
    stuck = refunds.filter(~Exists(moved), state=TopUpRefund.State.SENT, sent_at__lt=long_ago)
    kept = Case(When(state=Dispute.State.LOST, then=F("amount_cents")), default=Value(0))
    wrong = Dispute.objects.exclude(state=Dispute.State.OPEN).exclude(withdrawn_cents=kept)
    opened = 0
    for refund in stuck:
        unsent = {"what": "a refund was sent, and no money left Stripe", "stripe_refund": refund.stripe_refund_id}
        opened += _open(f"refund {refund.pk}", unsent)
    for dispute in wrong.filter(closed_at__lt=long_ago):
        kept_otherwise = {
            "what": "a bank decided a dispute, and keeps another amount than that says",
            "state": dispute.state,
            "disputed_cents": dispute.amount_cents,
            "withdrawn_cents": dispute.withdrawn_cents,
        }
        opened += _open(f"dispute {dispute.pk}"[:64], kept_otherwise)
    return opened


def _open(subject: str, detail: Mapping[str, object]) -> bool:
    kind = Incident.Kind.RECONCILIATION
    if Incident.objects.filter(kind=kind, subject=subject).exists():
        return False  # open, or a person has looked at it
    logger.error("reconciliation: %s %s", subject, detail)
    return record_incident(kind=kind, subject=subject, detail=dict(detail))
