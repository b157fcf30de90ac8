"""Alerts of budgets: billing finds them, this module words and tells them."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import transaction

from billing.budgets.alerts import claim_alert, new_alerts
from billing.models import BudgetAlert
from marketplace.alerts.kinds import BUDGET
from marketplace.alerts.services import tell
from protocol.money import usd

_NAMES = {"organization": "organization", "team": "team", "key": "API key"}
_PERIODS = {"day": "today", "month": "this month", "total": "in all"}


def tell_budget_alerts() -> int:
    """Tell new alerts; of several parts of one limit that were reached together, the highest. Return how many."""
    return sum(_tell(alert, is_told=is_highest) for alert, is_highest in new_alerts())


@transaction.atomic
def _tell(alert: BudgetAlert, *, is_told: bool) -> bool:
    """Claim the alert and tell it. False: another worker has claimed it, or it is not told."""
    if not claim_alert(alert) or not is_told:
        return False
    tell(
        organization_id=alert.organization_id,
        kind=BUDGET,
        once=str(alert.pk),
        subject=subject_of(alert),
        text=text_of(alert),
        data=data_of(alert),
    )
    return True


def data_of(alert: BudgetAlert) -> dict[str, Any]:
    """Return what a webhook is told of the alert."""
    return {
        "budget_id": str(alert.node_id),
        "kind": alert.node_kind,
        "name": alert.node_name,
        "period": alert.period,
        "period_start": None if alert.period == BudgetAlert.Period.TOTAL else alert.period_start.isoformat(),
        "percent": alert.percent,
        "refused": alert.refused,
        "limit_nano_usd": alert.limit_nano_usd,
        "spent_nano_usd": alert.spent_nano_usd,
    }


def subject_of(alert: BudgetAlert) -> str:
    """Return the e-mail's subject."""
    what = f"{_NAMES[alert.node_kind]} “{alert.node_name}”"
    if alert.refused:
        return f"Requests are refused: the budget of the {what}"
    return f"{alert.percent} % of a budget is spent: {what}"


def text_of(alert: BudgetAlert) -> str:
    """Return the e-mail's text."""
    spent, limit = (usd(nano) for nano in (alert.spent_nano_usd, alert.limit_nano_usd))
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
