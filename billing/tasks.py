"""Celery tasks. Each is idempotent: it may run twice, or be killed at any line."""

from __future__ import annotations

import logging
import time
from datetime import date, timedelta
from uuid import UUID

from celery import shared_task
from django.conf import settings
from django.db import connection, transaction
from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Now
from django.utils import timezone

from billing import card_uses
from billing.auto_top_ups import charge_if_low, due_organizations, refresh_card_top_up
from billing.disputes.selectors import open_disputes
from billing.disputes.services import refresh_dispute, take_what_came_back
from billing.errors import PaymentMismatch, PaymentProviderUnavailable
from billing.integrity import Discrepancy, find_discrepancies, find_new_discrepancies
from billing.ledger import record_incident
from billing.lots import expire_lots
from billing.models import Incident, KeptAnswer, Outbox, StripeEvent, TopUp, TopUpRefund
from billing.papers.credit_notes import issue_due_credit_notes
from billing.papers.receipts import issue_due_receipts
from billing.periods import post_entries
from billing.reconciliation import reconcile
from billing.refunds import advance_refund
from billing.retention import drop_old_usage
from billing.rollups.checks import find_wrong_sums
from billing.rollups.services import roll_up
from billing.stripe import stripe_gateway
from billing.stripe_events import HANDLERS
from billing.top_ups import refresh_top_up

logger = logging.getLogger(__name__)

FIRST_RETRY = timedelta(seconds=15)
LAST_RETRY = timedelta(hours=1)
ATTEMPTS_UNTIL_INCIDENT = 8  # half an hour: then a person should look, and the retries go on
EVENT_BATCH = 200
TOP_UP_BATCH = 200
CATCH_UP_SECONDS = 3 * 24 * 3600  # as long as Stripe itself retries a webhook
OUTBOX_KEPT = timedelta(days=7)
USAGE_MONTHS_AHEAD = 3
ANSWER_BATCH = 1_000  # kept answers of up to 1 MiB: each batch is a short transaction
ANSWER_ROUNDS = 100  # of one run; runs come every minute


@shared_task
def process_stripe_event(event_id: str) -> None:
    """Fetch the object again and act on its present state, so that the order of events does not matter.

    A failure is tried again for as long as it takes, less and less often: the event may be about money.
    """
    event = StripeEvent.objects.get(pk=event_id)
    if event.processed_at is not None:
        return
    handler = HANDLERS.get(event.type)
    attempts = event.attempts + 1
    StripeEvent.objects.filter(pk=event_id).update(attempts=attempts, next_attempt_at=_later(attempts))
    try:
        if handler is not None and event.object_id:
            handler(event.object_id, stripe_gateway())
    except PaymentMismatch:
        logger.exception("Stripe event %s", event_id)  # an incident is open; trying again cannot help
    except Exception as error:
        StripeEvent.objects.filter(pk=event_id).update(last_error=type(error).__name__)
        if attempts >= ATTEMPTS_UNTIL_INCIDENT:
            detail = {"type": event.type, "error": type(error).__name__}
            record_incident(kind=Incident.Kind.STRIPE_EVENT, subject=event_id[:64], detail=detail)
        raise
    StripeEvent.objects.filter(pk=event_id, processed_at=None).update(processed_at=Now(), last_error="")
    Incident.objects.filter(kind=Incident.Kind.STRIPE_EVENT, subject=event_id[:64], resolved_at=None).update(
        resolved_at=Now()
    )


@shared_task
def check_top_up(top_up_id: str) -> None:
    """Ask Stripe about one top-up that waits: every event about it may be lost, and its payment still counts."""
    try:
        refresh_card_top_up(top_up_id=UUID(top_up_id))
        refresh_top_up(top_up_id=UUID(top_up_id))
    except PaymentMismatch:
        # An incident is open; asking again cannot help.
        TopUp.objects.filter(pk=top_up_id).update(next_check_at=None)


@shared_task
def top_up_low_wallets() -> None:
    """Charge the saved cards of organizations whose credit is below the threshold that they set."""
    for organization_id in due_organizations():
        top_up_wallet.delay(str(organization_id))


@shared_task
def top_up_wallet(organization_id: str) -> None:
    """Begin one automatic top-up, if credit is still low."""
    charge_if_low(organization_id=UUID(organization_id))


@shared_task
def reconcile_stripe() -> None:
    """Match every movement of the balance at Stripe with the books; a difference freezes payouts."""
    outcome = reconcile()
    logger.info("reconciliation: %s", outcome)


@shared_task
def catch_up_stripe_events() -> None:
    """Process again the events that failed, and note events whose webhook never arrived."""
    due = StripeEvent.objects.filter(processed_at=None, next_attempt_at__lte=Now()).order_by("next_attempt_at")
    for event_id, attempts in due.values_list("id", "attempts")[:EVENT_BATCH]:
        # A slow queue must not be given the same event again at each turn.
        StripeEvent.objects.filter(pk=event_id).update(next_attempt_at=_later(attempts + 1))
        process_stripe_event.delay(event_id)
    since = int(time.time()) - CATCH_UP_SECONDS
    missed = [
        StripeEvent(id=event.id, type=event.type, object_id=event.object_id)
        for event in stripe_gateway().events.undelivered(types=list(HANDLERS), since=since, limit=EVENT_BATCH)
    ]
    StripeEvent.objects.bulk_create(missed, ignore_conflicts=True)


@shared_task
def catch_up_top_ups() -> None:
    """Ask Stripe about each top-up that may still be paid, whether or not an event about it arrived."""
    due = TopUp.objects.filter(state__in=TopUp.WAITING, next_check_at__lte=Now()).order_by("next_check_at")
    for top_up_id, checks in due.values_list("id", "checks")[:TOP_UP_BATCH]:
        TopUp.objects.filter(pk=top_up_id).update(checks=checks + 1, next_check_at=_later(checks + 1))
        check_top_up.delay(str(top_up_id))


@shared_task
def learn_cards() -> None:
    """Ask Stripe for the cards of payments whose events said nothing of them, and of cards saved long ago."""
    card_uses.learn_cards(gateway=stripe_gateway())


def _later(attempts: int) -> CombinedExpression:
    """Return when to try again after so many attempts, on the database's clock: 15 s later, doubled up to an hour."""
    return Now() + min(FIRST_RETRY * 2 ** min(attempts - 1, 10), LAST_RETRY)


@shared_task
def advance_refunds() -> None:
    """Ask Stripe about each refund that is not final, whether or not an event about it arrived."""
    due = TopUpRefund.objects.filter(state=TopUpRefund.State.REQUESTED, next_check_at__lte=Now())
    for refund_id, checks in due.order_by("next_check_at").values_list("id", "checks")[:TOP_UP_BATCH]:
        TopUpRefund.objects.filter(pk=refund_id).update(checks=checks + 1, next_check_at=_later(checks + 1))
        ask_about_refund.delay(str(refund_id))


@shared_task
def ask_about_refund(refund_id: str) -> None:
    """Ask Stripe about one refund."""
    try:
        advance_refund(refund_id=UUID(refund_id))
    except (PaymentProviderUnavailable, PaymentMismatch) as error:
        logger.warning("refund %s: %s; it is asked again", refund_id, type(error).__name__)


@shared_task
def take_disputed_credit() -> None:
    """Freeze credit of disputed payments that came back; after a loss, make it good."""
    take_what_came_back()


@shared_task
def ask_about_disputes() -> None:
    """Ask Stripe about every dispute that no bank has decided: all events about one may be lost."""
    for dispute in open_disputes():
        ask_about_dispute.delay(dispute.pk)


@shared_task
def ask_about_dispute(dispute_id: str) -> None:
    """Ask Stripe about one dispute."""
    try:
        refresh_dispute(dispute_id=dispute_id)
    except (PaymentProviderUnavailable, PaymentMismatch) as error:
        logger.warning("dispute %s: %s; it is asked again", dispute_id, type(error).__name__)


@shared_task
def clear_outbox() -> int:
    """Delete messages that were told and are old; return how many."""
    told = Outbox.objects.filter(announced_at__isnull=False, created_at__lt=timezone.now() - OUTBOX_KEPT)
    return told.delete()[0]


@shared_task
def forget_answers() -> int:
    """Delete answers that were kept for retries and are past their time; return how many."""
    deleted = ANSWER_BATCH
    rounds = total = 0
    while deleted == ANSWER_BATCH and rounds < ANSWER_ROUNDS:
        expired = KeptAnswer.objects.filter(expires_at__lte=Now()).order_by("expires_at").values("pk")[:ANSWER_BATCH]
        deleted, _ = KeptAnswer.objects.filter(pk__in=expired).delete()
        rounds, total = rounds + 1, total + deleted
    return total


@shared_task
def create_usage_partitions() -> None:
    """Create the usage partitions of this month and the next `USAGE_MONTHS_AHEAD`."""
    today = timezone.now().date()
    months = [
        date(today.year + (today.month - 1 + ahead) // 12, (today.month - 1 + ahead) % 12 + 1, 1)
        for ahead in range(USAGE_MONTHS_AHEAD + 1)
    ]
    with connection.cursor() as cursor:
        for month in months:
            cursor.execute("SELECT billing_create_usage_partition(%s)", [month])


@shared_task
def drop_usage() -> None:
    """Drop single predictions that are older than `USAGE_MONTHS_KEPT` months, where nothing needs them any more."""
    months_kept: int = settings.ENV.usage_months_kept
    if months_kept == 0:
        return
    for month, outcome in drop_old_usage(months_kept=months_kept).items():
        log = logger.info if outcome == "dropped" else logger.warning
        log("usage of %s: %s", f"{month:%Y-%m}", outcome)


@shared_task
def expire_credit() -> None:
    """Take what is left of expired promotional credit, but for what open holds have set aside."""
    expire_lots()


@shared_task
def post_new_entries() -> None:
    """Give entries committed since the last run their number and month (statements read them)."""
    post_entries()


@shared_task
def issue_papers() -> None:
    """Issue the papers of payments and refunds that have none yet."""
    issue_due_receipts()
    issue_due_credit_notes()


@shared_task
def roll_up_usage() -> None:
    """Add usage and corrections committed since the last run to the sums that pages and the API read."""
    roll_up()


@shared_task
@transaction.atomic
def check_ledger() -> None:
    """Check the balances, and the charges since the last check; log each discrepancy and open an incident.

    Progress and incidents are committed together, so a killed check is repeated by the next.
    """
    _report(find_new_discrepancies())


@shared_task
def check_ledger_in_full() -> None:
    """Check all rows of the books in the same way, and the sums of usage and earnings."""
    wrong_sums = [
        Discrepancy(Incident.Kind.ROLLUP_MISMATCH, wrong.subject, wrong.rule, wrong.found, wrong.expected)
        for wrong in find_wrong_sums()
    ]
    _report([*find_discrepancies(), *wrong_sums])


def _report(discrepancies: list[Discrepancy]) -> None:
    for discrepancy in discrepancies:
        logger.error("ledger check failed: %s %s", discrepancy.kind, discrepancy.detail)
        record_incident(kind=discrepancy.kind, subject=discrepancy.subject, detail=discrepancy.detail)
