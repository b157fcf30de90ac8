"""The task of the budget alerts. It may run twice, or be killed at any line."""

from __future__ import annotations

from celery import shared_task

from billing.budgets.alerts import announce_alerts, find_alerts
from billing.budgets.delivery import deliver_alerts


@shared_task
def alert_budgets() -> int:
    """Find alerts, announce them and send what is due; return how many deliveries arrived."""
    find_alerts()
    announce_alerts()
    return deliver_alerts()
