"""Deliveries of alerts: claimed, sent, and tried again less and less often for about a day."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.mail import EmailMessage
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from billing.budgets.addresses import Network
from billing.budgets.webhooks import post
from marketplace.accounts.models import Membership
from marketplace.alerts.kinds import roles_told
from marketplace.alerts.models import Alert, Delivery

logger = logging.getLogger(__name__)

BATCH = 100  # deliveries of one round
AT_ONCE = 20  # webhooks posted to at the same time
FIRST_RETRY, LAST_RETRY = timedelta(seconds=15), timedelta(hours=1)
MAX_ATTEMPTS = 30  # then a day is over
MAILS_A_DAY = 20  # to the members of one organization


def deliver_alerts() -> int:
    """Send the deliveries that are due; return how many arrived."""
    due = Delivery.objects.filter(next_attempt_at__lte=Now()).order_by("next_attempt_at")
    claimed = [one for one in due.select_related("alert", "webhook")[:BATCH] if claim(one)]
    mails = [one for one in claimed if one.webhook is None]
    posts = [one for one in claimed if one.webhook is not None]
    outcomes = asyncio.run(_post_all(posts, settings.ENV.webhook_networks))
    arrived = sum(_record(one, error) for one, error in zip(posts, outcomes, strict=True))
    return arrived + sum(_record(one, _mail(one)) for one in mails)  # each mail counts before the next is sent


def message_of(alert: Alert) -> dict[str, Any]:
    """Return the JSON that is posted for an alert."""
    data = {"alert_id": alert.pk, "subject": alert.subject, **alert.data}
    return {"type": alert.kind, "timestamp": alert.created_at.isoformat(), "data": data}


def claim(delivery: Delivery) -> bool:
    """Plan the next attempt before this one, so that a worker that dies loses nothing and two send nothing twice."""
    pause = min(LAST_RETRY, FIRST_RETRY * 2 ** min(delivery.attempts, 10))
    claimed = Delivery.objects.filter(pk=delivery.pk, attempts=delivery.attempts, delivered_at=None).update(
        attempts=F("attempts") + 1, next_attempt_at=timezone.now() + pause
    )
    return bool(claimed)


def _record(delivery: Delivery, error: str | None) -> bool:
    if error is None:
        fields = {"delivered_at": Now(), "next_attempt_at": None, "error": ""}
    else:
        fields = {"error": error[:200]}
        if delivery.attempts + 1 >= MAX_ATTEMPTS:
            fields["next_attempt_at"] = None
    Delivery.objects.filter(pk=delivery.pk).update(**fields)
    return error is None


async def _post_all(deliveries: Sequence[Delivery], networks: Sequence[Network]) -> list[str | None]:
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(delivery: Delivery) -> str | None:
        assert delivery.webhook is not None
        async with turn:
            # The same alert has the same `webhook-id` however often it is posted.
            name, message = f"alert_{delivery.alert_id}", message_of(delivery.alert)
            return await post(delivery.webhook, message_id=name, message=message, networks=networks)

    return await asyncio.gather(*(one(delivery) for delivery in deliveries))


def _mail(delivery: Delivery) -> str | None:
    """Tell the members whose role sees alerts of this kind. Returns why it was not sent."""
    alert = delivery.alert
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
