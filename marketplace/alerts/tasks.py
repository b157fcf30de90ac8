"""The tasks of alerts and events. Each may run twice, or be killed at any line."""

from __future__ import annotations

from celery import shared_task

from billing.budgets.alerts import find_alerts
from marketplace.alerts.budgets import tell_budget_alerts
from marketplace.alerts.delivery import deliver_due, forget_old
from marketplace.alerts.money import tell_money_events


@shared_task
def send_alerts() -> int:
    """Find and tell the alerts of budgets and events about money, then send what is due; return how many arrived."""
    find_alerts()
    tell_budget_alerts()
    tell_money_events()
    return deliver_due()


@shared_task
def forget_old_deliveries() -> int:
    """Delete events and deliveries that are past their time; return how many rows went."""
    return forget_old()
