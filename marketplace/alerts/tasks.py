"""The task of the alerts. It may run twice, or be killed at any line."""

from __future__ import annotations

from celery import shared_task

from billing.budgets.alerts import find_alerts
from marketplace.alerts.budgets import tell_budget_alerts
from marketplace.alerts.delivery import deliver_alerts


@shared_task
def send_alerts() -> int:
    """Find and tell the alerts of budgets, then send what is due; return how many deliveries arrived."""
    find_alerts()
    tell_budget_alerts()
    return deliver_alerts()
