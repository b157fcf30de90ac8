"""Celery tasks. Each is idempotent: it may run twice, or be killed at any line."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from datetime import date, timedelta

from celery import shared_task
from django.conf import settings
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from billing.errors import PaymentMismatch
from billing.integrity import find_discrepancies
from billing.ledger import record_incident
from billing.locks import claim_outbox_rows
from billing.models import Incident, Outbox, StripeEvent, TopUp
from billing.stripe_gateway import StripeGateway, stripe_gateway
from billing.top_ups import credit_top_up, fail_top_up, record_stripe_fee

logger = logging.getLogger(__name__)

EVENT_ATTEMPTS = 20  # one every 15 s: then a person must look
EVENT_BATCH = 200
CATCH_UP_SECONDS = 3 * 24 * 3600  # as long as Stripe itself retries a webhook
OUTBOX_BATCH = 500
OUTBOX_STREAM = "intarsia:billing:events"
OUTBOX_STREAM_LENGTH = 100_000  # entries kept for slow readers
OUTBOX_KEPT = timedelta(days=7)
USAGE_MONTHS_AHEAD = 3


def _session_event(event: StripeEvent, gateway: StripeGateway) -> None:
    credit_top_up(session=gateway.retrieve_checkout_session(event.object_id))


def _failed_session_event(event: StripeEvent, gateway: StripeGateway) -> None:
    session = gateway.retrieve_checkout_session(event.object_id)
    if session.payment_status != "paid":
        fail_top_up(session=session)


def _charge_event(event: StripeEvent, gateway: StripeGateway) -> None:
    charge = gateway.retrieve_charge(event.object_id)
    ours = TopUp.objects.filter(payment_intent_id=charge.payment_intent_id, state=TopUp.State.CREDITED).exists()
    if ours and charge.fee is not None:
        record_stripe_fee(fee=charge.fee)


_HANDLERS: dict[str, Callable[[StripeEvent, StripeGateway], None]] = {
    "checkout.session.completed": _session_event,
    "checkout.session.async_payment_succeeded": _session_event,
    "checkout.session.async_payment_failed": _failed_session_event,
    "checkout.session.expired": _session_event,
    "charge.updated": _charge_event,
}


@shared_task
def process_stripe_event(event_id: str) -> None:
    """Fetch the object again and act on its present state, so that the order of events does not matter."""
    event = StripeEvent.objects.get(pk=event_id)
    if event.processed_at is not None:
        return
    handler = _HANDLERS.get(event.type)
    StripeEvent.objects.filter(pk=event_id).update(attempts=F("attempts") + 1)
    try:
        if handler is not None and event.object_id:
            handler(event, stripe_gateway())
    except PaymentMismatch:
        logger.exception("Stripe event %s", event_id)  # an incident is open; trying again cannot help
    except Exception as error:
        StripeEvent.objects.filter(pk=event_id).update(last_error=type(error).__name__)
        if event.attempts + 1 >= EVENT_ATTEMPTS:
            detail = {"type": event.type, "error": type(error).__name__}
            record_incident(kind=Incident.Kind.STRIPE_EVENT, subject=event_id[:64], detail=detail)
        raise
    StripeEvent.objects.filter(pk=event_id, processed_at=None).update(processed_at=timezone.now(), last_error="")


@shared_task
def catch_up_stripe_events() -> None:
    """Note events whose webhook never arrived, and process again the events that failed."""
    since = int(time.time()) - CATCH_UP_SECONDS
    StripeEvent.objects.bulk_create(
        [
            StripeEvent(id=event.id, type=event.type, object_id=event.object_id)
            for event in stripe_gateway().undelivered_events(since=since, limit=EVENT_BATCH)
        ],
        ignore_conflicts=True,
    )
    waiting = StripeEvent.objects.filter(processed_at=None, attempts__lt=EVENT_ATTEMPTS).order_by("received_at")
    for event_id in waiting.values_list("id", flat=True)[:EVENT_BATCH]:
        process_stripe_event.delay(event_id)


@shared_task
def deliver_outbox() -> None:
    """Append waiting messages to the Valkey stream `OUTBOX_STREAM`, oldest first; drop old delivered ones.

    A crash between sending and marking sends again: readers drop what they have seen by (topic, key).
    """
    import redis

    with redis.Redis.from_url(settings.ENV.valkey_url, socket_timeout=5, socket_connect_timeout=3) as valkey:
        delivered = OUTBOX_BATCH
        while delivered == OUTBOX_BATCH:
            with transaction.atomic():
                rows = claim_outbox_rows(OUTBOX_BATCH)
                with valkey.pipeline(transaction=False) as pipeline:
                    for row in rows:
                        fields = {"topic": row.topic, "key": row.key, "payload": json.dumps(row.payload)}
                        pipeline.xadd(OUTBOX_STREAM, fields, maxlen=OUTBOX_STREAM_LENGTH, approximate=True)
                    pipeline.execute()
                Outbox.objects.filter(pk__in=[row.pk for row in rows]).update(delivered_at=timezone.now())
            delivered = len(rows)
    Outbox.objects.filter(delivered_at__lt=timezone.now() - OUTBOX_KEPT).delete()


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
def check_ledger() -> None:
    """Check that the books agree with themselves; log each discrepancy as an error and open an incident."""
    for discrepancy in find_discrepancies():
        logger.error("ledger check failed: %s %s", discrepancy.kind, discrepancy.detail)
        record_incident(kind=discrepancy.kind, subject=discrepancy.subject, detail=discrepancy.detail)
