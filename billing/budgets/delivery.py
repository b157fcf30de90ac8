"""Deliveries of alerts: claimed, sent, and tried again less and less often for about a day."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta

from django.conf import settings
from django.core.mail import EmailMessage
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from billing.budgets.addresses import Network
from billing.budgets.webhooks import post
from billing.models import AlertDelivery, BudgetAlert
from marketplace.accounts.models import Membership
from marketplace.accounts.policies import SCOPES_OF_ROLE

logger = logging.getLogger(__name__)

BATCH = 100  # deliveries of one round
AT_ONCE = 20  # webhooks posted to at the same time
FIRST_RETRY, LAST_RETRY = timedelta(seconds=15), timedelta(hours=1)
MAX_ATTEMPTS = 30  # then a day is over
MAILS_A_DAY = 20  # to the members of one organization
_NAMES = {"organization": "organization", "team": "team", "key": "API key"}
_PERIODS = {"day": "today", "month": "this month", "total": "in all"}


def deliver_alerts() -> int:
    """Send the deliveries that are due; return how many arrived."""
    due = AlertDelivery.objects.filter(next_attempt_at__lte=Now()).order_by("next_attempt_at")
    claimed = [one for one in due.select_related("alert__organization", "webhook")[:BATCH] if _claim(one)]
    mails = [one for one in claimed if one.webhook is None]
    posts = [one for one in claimed if one.webhook is not None]
    outcomes = asyncio.run(_post_all(posts, settings.ENV.webhook_networks))
    arrived = sum(_record(one, error) for one, error in zip(posts, outcomes, strict=True))
    return arrived + sum(_record(one, _mail(one)) for one in mails)  # each mail counts before the next is sent


def _claim(delivery: AlertDelivery) -> bool:
    """Plan the next attempt before this one, so that a worker that dies loses nothing and two send nothing twice."""
    pause = min(LAST_RETRY, FIRST_RETRY * 2 ** min(delivery.attempts, 10))
    claimed = AlertDelivery.objects.filter(pk=delivery.pk, attempts=delivery.attempts, delivered_at=None).update(
        attempts=F("attempts") + 1, next_attempt_at=timezone.now() + pause
    )
    return bool(claimed)


def _record(delivery: AlertDelivery, error: str | None) -> bool:
    if error is None:
        fields = {"delivered_at": Now(), "next_attempt_at": None, "error": ""}
    else:
        fields = {"error": error[:200]}
        if delivery.attempts + 1 >= MAX_ATTEMPTS:
            fields["next_attempt_at"] = None
    AlertDelivery.objects.filter(pk=delivery.pk).update(**fields)
    return error is None


async def _post_all(deliveries: Sequence[AlertDelivery], networks: Sequence[Network]) -> list[str | None]:
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(delivery: AlertDelivery) -> str | None:
        assert delivery.webhook is not None
        async with turn:
            return await post(delivery.webhook, delivery.alert, networks=networks)

    return await asyncio.gather(*(one(delivery) for delivery in deliveries))


def _mail(delivery: AlertDelivery) -> str | None:
    """Tell the members who may see money. Returns why it was not sent."""
    alert = delivery.alert
    since = timezone.now() - timedelta(days=1)
    sent = AlertDelivery.objects.filter(
        webhook=None, delivered_at__gte=since, alert__organization_id=alert.organization_id
    )
    if sent.count() >= MAILS_A_DAY:
        return f"{MAILS_A_DAY} alerts were mailed within a day"
    roles = [role for role, scopes in SCOPES_OF_ROLE.items() if "account" in scopes]
    members = Membership.objects.filter(organization_id=alert.organization_id, role__in=roles, user__is_active=True)
    recipients = list(members.values_list("user__email", flat=True).distinct())
    if not recipients:
        return None
    try:
        EmailMessage(subject_of(alert), text_of(alert), bcc=recipients).send()
    except OSError as error:  # smtplib's errors are among them
        logger.warning("alert %s not mailed: %s", alert.pk, type(error).__name__)
        return "the mail server did not take it"
    return None


def subject_of(alert: BudgetAlert) -> str:
    """Return the e-mail's subject."""
    what = f"{_NAMES[alert.node_kind]} “{alert.node_name}”"
    if alert.refused:
        return f"Requests are refused: the budget of the {what}"
    return f"{alert.percent} % of a budget is spent: {what}"


def text_of(alert: BudgetAlert) -> str:
    """Return the e-mail's text."""
    spent, limit = (f"${nano / 1e9:,.2f}" for nano in (alert.spent_nano_usd, alert.limit_nano_usd))
    period = _PERIODS[alert.period]
    if alert.refused:
        what = (
            f"{spent} of {limit} {period} is spent or set aside, and a request that might cost more than the rest\n"
            "was refused. Smaller requests may still be answered."
        )
    else:
        what = f"{spent} of {limit} {period} is spent."
    return (
        f"The budget of the {_NAMES[alert.node_kind]} “{alert.node_name}” of {alert.organization.slug}:\n\n{what}\n\n"
        f"Budgets: {settings.ENV.public_url}/dashboard/budgets\n"
    )
