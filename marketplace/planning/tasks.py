"""Tasks of this app. A worker of its own queue makes plans: they take minutes."""

from __future__ import annotations

from celery import shared_task

from marketplace.planning import services
from marketplace.planning.services import PLAN_TASK, WORK_SECONDS, claim_plan, make


# Acknowledged at once, as evaluations are: what a killed worker leaves is failed by the next claim.
@shared_task(name=PLAN_TASK, acks_late=False, time_limit=WORK_SECONDS, soft_time_limit=WORK_SECONDS - 30)
def make_plan() -> bool:
    """Make the plan that waits, if any; return whether one did."""
    plan = claim_plan()
    if plan is not None:
        make(plan)
    return plan is not None


@shared_task(name="marketplace.planning.ask_weekly")
def ask_weekly() -> bool:
    """Ask for the week's plan once it is due; return whether it was asked for."""
    return services.ask_weekly() is not None
