"""Tasks of this app. A worker of its own queue makes plans: they take minutes."""

from __future__ import annotations

from celery import shared_task

from marketplace.planning.process import SECONDS
from marketplace.planning.services import PLAN_TASK, claim_plan, make


# Acknowledged at once, as evaluations are: what a killed worker leaves is failed by the next claim.
@shared_task(name=PLAN_TASK, acks_late=False, time_limit=3 * SECONDS, soft_time_limit=3 * SECONDS - 30)
def make_plan() -> bool:
    """Make the plan that waits, if any; return whether one did."""
    plan = claim_plan()
    if plan is not None:
        make(plan)
    return plan is not None
