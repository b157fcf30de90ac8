"""Deliveries of alerts and events: claimed, sent, and tried again less and less often for 24 hours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import F, Q, QuerySet, Window
from django.db.models.functions import Coalesce, Now, RowNumber
from django.db.models.lookups import IsNull
from django.utils import timezone

from billing.budgets.addresses import Network
from billing.budgets.webhooks import Outcome, post
from billing.models import Webhook
from marketplace.accounts.models import Membership
from marketplace.alerts.kinds import WEBHOOK_DISABLED, roles_told
from marketplace.alerts.models import Delivery, Event
from marketplace.alerts.services import tell
from protocol.shares import Bound, Shares, declared

logger = logging.getLogger(__name__)

BATCH = 100  # deliveries of one round
OF_ONE = 8  # posts of one organization in it: a round lasts as long as two posts that nobody answers
POSTS = declared(Bound("webhooks", places=20, share=4, waiting=OF_ONE))
FIRST_RETRY, LAST_RETRY = timedelta(seconds=15), timedelta(hours=1)
MAX_ATTEMPTS = 32  # then 24 hours are over
DISABLED_AFTER = timedelta(days=5)  # in which every attempt failed
KEPT = timedelta(days=30)
FORGOTTEN_AT_ONCE = 5_000
MAILS_A_DAY = 20  # to the members of one organization


def deliver_due() -> int:
    """Send the deliveries that are due; return how many arrived."""
    claimed = [one for one in _due() if claim(one)]
    mails = [one for one in claimed if one.webhook is None]
    posts = [one for one in claimed if one.webhook is not None]
    outcomes = asyncio.run(_post_all(posts, settings.ENV.webhook_networks))
    arrived = sum(_record_post(one, outcome) for one, outcome in zip(posts, outcomes, strict=True))
    return arrived + sum(_record(one, Outcome(_mail(one))) for one in mails)  # each counts before the next is sent


def _due() -> QuerySet[Delivery]:
    """Return what is due, one of each organization before the second of any, and few posts of each."""
    organization = Coalesce("alert__organization_id", "event__organization_id")
    place = Window(
        RowNumber(), partition_by=[organization, IsNull(F("webhook_id"), True)], order_by=["next_attempt_at", "pk"]
    )
    due = Delivery.objects.filter(next_attempt_at__lte=Now()).annotate(place=place)
    due = due.filter(Q(webhook=None) | Q(place__lte=OF_ONE))
    return due.order_by("place", "next_attempt_at").select_related("alert", "event", "webhook")[:BATCH]


def message_of(delivery: Delivery) -> dict[str, Any]:
    """Return the JSON that is posted for an alert or an event."""
    alert, event = delivery.alert, delivery.event
    if event is not None:
        return {"type": event.kind, "timestamp": event.created_at.isoformat(), "data": event.data}
    assert alert is not None
    data = {"alert_id": alert.pk, "subject": alert.subject, **alert.data}
    return {"type": alert.kind, "timestamp": alert.created_at.isoformat(), "data": data}


def message_id_of(delivery: Delivery) -> str:
    """Return the `webhook-id`: the same alert or event has the same one however often it is posted."""
    return f"alert_{delivery.alert_id}" if delivery.event_id is None else f"event_{delivery.event_id}"


def claim(delivery: Delivery) -> bool:
    """Plan the next attempt before this one, so that a worker that dies loses nothing and two send nothing twice."""
    pause = min(LAST_RETRY, FIRST_RETRY * 2 ** min(delivery.attempts, 10))
    claimed = Delivery.objects.filter(pk=delivery.pk, attempts=delivery.attempts, delivered_at=None).update(
        attempts=F("attempts") + 1, next_attempt_at=timezone.now() + pause
    )
    return bool(claimed)


def _record(delivery: Delivery, outcome: Outcome) -> bool:
    fields: dict[str, Any] = {"status": outcome.status, "error": (outcome.error or "")[:200]}
    if outcome.error is None:
        fields |= {"delivered_at": Now(), "next_attempt_at": None}
    elif delivery.attempts + 1 >= MAX_ATTEMPTS:
        fields["next_attempt_at"] = None
    Delivery.objects.filter(pk=delivery.pk).update(**fields)
    return outcome.error is None


def _record_post(delivery: Delivery, outcome: Outcome) -> bool:
    """Note the outcome of a delivery, and how long its webhook has been failing."""
    arrived = _record(delivery, outcome)
    assert delivery.webhook is not None
    webhook = Webhook.objects.filter(pk=delivery.webhook.pk)
    if arrived:
        webhook.filter(failing_since__isnull=False).update(failing_since=None)
        return True
    webhook.filter(failing_since=None).update(failing_since=Now())
    _disable_if_dead(webhook.filter(failing_since__lt=timezone.now() - DISABLED_AFTER, disabled_at=None).first())
    return False


@transaction.atomic
def _disable_if_dead(webhook: Webhook | None) -> None:
    """Post nothing more to a webhook that has failed for days, and tell the organization."""
    if webhook is None or not Webhook.objects.filter(pk=webhook.pk, disabled_at=None).update(disabled_at=Now()):
        return
    days = DISABLED_AFTER.days
    tell(
        organization_id=webhook.organization_id,
        kind=WEBHOOK_DISABLED,
        once=f"{webhook.pk}:{webhook.failing_since}",
        subject="A webhook is disabled: nothing arrived there for days",
        text=f"Every delivery to {webhook.url} has failed for {days} days, so nothing more is posted there.\n\n"
        "Enable it when its receiver works again, and replay what it missed:\n\n"
        f"{settings.ENV.public_url}/dashboard/webhooks/{webhook.pk}\n",
        data={"webhook_id": str(webhook.pk), "days": days},
    )


def forget_old() -> int:
    """Delete events and deliveries older than 30 days; return how many rows went. Alerts stay in their feed."""
    before = timezone.now() - KEPT
    old = Delivery.objects.filter(created_at__lt=before, next_attempt_at=None).values("pk")[:FORGOTTEN_AT_ONCE]
    deleted, _ = Delivery.objects.filter(pk__in=old).delete()
    events = Event.objects.filter(created_at__lt=before, deliveries=None).values("pk")[:FORGOTTEN_AT_ONCE]
    return deleted + Event.objects.filter(pk__in=events).delete()[0]


async def _post_all(deliveries: Sequence[Delivery], networks: Sequence[Network]) -> list[Outcome]:
    shares = Shares(POSTS)
    # Names are looked up in threads: with one for each place, nobody's slow name server keeps others waiting.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(POSTS.places, "webhook-names"))

    async def one(delivery: Delivery) -> Outcome:
        assert delivery.webhook is not None
        if delivery.webhook.disabled_at is not None:
            return Outcome("the webhook is disabled")
        async with shares.place(delivery.webhook.organization_id):
            name, message = message_id_of(delivery), message_of(delivery)
            return await post(delivery.webhook, message_id=name, message=message, networks=networks)

    return await asyncio.gather(*(one(delivery) for delivery in deliveries))


def _mail(delivery: Delivery) -> str | None:
    """Tell the members whose role sees alerts of this kind. Returns why it was not sent."""
    alert = delivery.alert
    assert alert is not None, "an event is not mailed"
    since = timezone.now() - timedelta(days=1)
    sent = Delivery.objects.filter(webhook=None, delivered_at__gte=since, alert__organization_id=alert.organization_id)
    if sent.count() >= MAILS_A_DAY:
        return f"{MAILS_A_DAY} alerts were mailed within a day"
    roles = roles_told(alert.kind)
    members = Membership.objects.filter(organization_id=alert.organization_id, role__in=roles, user__is_active=True)
    recipients = list(members.values_list("user__email", flat=True).distinct())
    if not recipients:
        return None
    try:
        EmailMessage(alert.subject, alert.text, bcc=recipients).send()
    except OSError as error:  # smtplib's errors are among them
        logger.warning("alert %s not mailed: %s", alert.pk, type(error).__name__)
        return "the mail server did not take it"
    return None
