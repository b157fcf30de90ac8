"""Celery tasks of payouts. Each is idempotent: it may run twice, or be killed at any line."""

from __future__ import annotations

import logging
from datetime import timedelta
from uuid import UUID

from celery import shared_task
from django.db.models.functions import Now
from django.utils import timezone

from billing.errors import PaymentProviderUnavailable
from billing.ledger import record_incident
from billing.models import Account, Incident, Payout, PayoutAccount
from billing.payouts.accounts import refresh_account
from billing.payouts.checks import contradictions
from billing.payouts.reserve import settle_balances
from billing.payouts.schedule import start_due_payouts
from billing.payouts.services import WATCH_PAID, advance_payout
from marketplace.accounts.models import Organization

logger = logging.getLogger(__name__)

BATCH = 200
FIRST_LOOK = timedelta(seconds=5)
LAST_LOOK = timedelta(hours=1)
LOOK_LOST = timedelta(seconds=20)  # a look that did not end by then died with its worker, and is taken again
WATCHED_DAYS = timedelta(days=10)  # after its arrival a payout may still come back from the bank


@shared_task
def advance_payouts() -> None:
    """Take the next step of every payout that is due, and ask about creators' accounts, event or no event."""
    due = Payout.objects.filter(next_check_at__lte=Now()).order_by("next_check_at")[:BATCH]
    for payout in due:
        Payout.objects.filter(pk=payout.pk).update(next_check_at=Now() + LOOK_LOST)
        advance_one_payout.delay(str(payout.pk))
    accounts = PayoutAccount.objects.filter(next_check_at__lte=Now(), stripe_account_id__isnull=False)
    for pk in accounts.order_by("next_check_at").values_list("pk", flat=True)[:BATCH]:
        PayoutAccount.objects.filter(pk=pk).update(next_check_at=Now() + LAST_LOOK)
        ask_about_account.delay(str(pk))


def _next_look(payout: Payout, checks: int) -> object:
    if payout.state == Payout.State.RETURNED:
        return None
    if payout.state == Payout.State.PAID:
        over = payout.paid_at is not None and timezone.now() - payout.paid_at > WATCHED_DAYS
        return None if over else Now() + WATCH_PAID
    return Now() + min(FIRST_LOOK * 2 ** min(checks, 10), LAST_LOOK)


@shared_task
def advance_one_payout(payout_id: str) -> None:
    """Take the steps of one payout that can be taken now. Only a look that took place puts the next one off."""
    before = Payout.objects.filter(pk=payout_id).first()
    if before is None:
        return
    try:
        advance_payout(payout_id=before.pk)
    except PaymentProviderUnavailable:
        logger.warning("payout %s: Stripe cannot be reached; it is tried again", payout_id)
    finally:
        # A payout that moved on is due at once.
        Payout.objects.filter(pk=before.pk, state=before.state, checks=before.checks).update(
            checks=before.checks + 1, next_check_at=_next_look(before, before.checks)
        )


@shared_task
def ask_about_account(organization_id: str) -> None:
    """Ask Stripe how a creator's account is now."""
    try:
        refresh_account(organization_id=UUID(organization_id))
    except PaymentProviderUnavailable:
        logger.warning("the account of %s: Stripe cannot be reached; it is tried again", organization_id)


@shared_task
def start_scheduled_payouts() -> None:
    """Start the payouts whose day has come."""
    start_due_payouts()


@shared_task
def settle_creators() -> None:
    """Net debts and release matured earnings of every creator that has any."""
    kinds = (Account.Kind.CREATOR_RESERVE, Account.Kind.RECEIVABLE)
    owners = Account.objects.filter(kind__in=kinds).exclude(posted=0).values("organization")
    for organization in Organization.objects.filter(pk__in=owners).order_by("pk").iterator():
        settle_balances(organization)


@shared_task
def check_payouts() -> None:
    """Open an incident for every creator whose account of payouts in transit contradicts the payouts."""
    for organization, posted, open_ in contradictions():
        logger.error("payouts in transit of %s: %d in the books, %d on their way", organization, posted, open_)
        detail = {"in_transit_nano_usd": posted, "open_payouts_nano_usd": open_}
        record_incident(kind=Incident.Kind.PAYOUT_MISMATCH, subject=organization, detail=detail)
