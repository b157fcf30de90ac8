"""Payouts that leave by themselves, on the days of the creator's schedule (UTC)."""

from __future__ import annotations

import logging
from datetime import date, timedelta

from django.utils import timezone

from billing.models import Payout, PayoutAccount
from billing.payouts.errors import BelowMinimum, PayoutInProgress, PayoutsFrozen
from billing.payouts.services import start_payout

logger = logging.getLogger(__name__)

Schedule = PayoutAccount.Schedule


def last_due_day(schedule: str, today: date) -> date | None:
    """Return the newest day of the schedule that is not after `today`, or None for a manual one."""
    match schedule:
        case Schedule.WEEKLY:
            return today - timedelta(days=today.weekday())
        case Schedule.MONTHLY:
            return today.replace(day=1)
        case _:
            return None


def next_due_day(schedule: str, today: date) -> date | None:
    """Return the first day of the schedule after `today`, or None for a manual one."""
    match schedule:
        case Schedule.WEEKLY:
            return today + timedelta(days=7 - today.weekday())
        case Schedule.MONTHLY:
            return (today.replace(day=28) + timedelta(days=4)).replace(day=1)
        case _:
            return None


def start_due_payouts(today: date | None = None) -> list[Payout]:
    """Start the payout of every creator whose day has come, once per day of the schedule; return those that started.

    A balance below the minimum waits for the next day of the schedule. One that is frozen, or whose earlier payout is
    still on its way, is looked at again in an hour.
    """
    today = today or timezone.now().date()
    started = []
    accounts = PayoutAccount.objects.exclude(schedule=Schedule.MANUAL).filter(state=PayoutAccount.State.ACTIVE)
    for account in accounts.select_related("organization").order_by("pk").iterator():
        due = last_due_day(account.schedule, today)
        # An account that was opened after its day begins with the next one.
        if due is None or due <= (account.last_scheduled_on or account.created_at.date()):
            continue
        try:
            started.append(start_payout(organization=account.organization))
        except BelowMinimum:
            pass
        except (PayoutsFrozen, PayoutInProgress) as refusal:
            logger.info("the scheduled payout of %s waits: %s", account.organization.slug, refusal.code)
            continue
        PayoutAccount.objects.filter(pk=account.pk).update(last_scheduled_on=due)
    return started
