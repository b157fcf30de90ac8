"""Plans as pages and the API read them."""

from __future__ import annotations

from django.db.models import QuerySet

from marketplace.planning.models import Plan, PlanFile


def plans() -> QuerySet[Plan]:
    """Return every plan, the newest first, without what it says."""
    return Plan.objects.defer("result", "review").order_by("-created_at", "-id")


def plan_files() -> QuerySet[PlanFile]:
    """Return every file, the newest first, without its content."""
    return PlanFile.objects.defer("content").order_by("-created_at", "-id")


def newest_made() -> Plan | None:
    """Return the newest plan that was made."""
    return Plan.objects.filter(state=Plan.State.DONE).order_by("-created_at", "-id").first()


def unfinished() -> list[Plan]:
    """Return the plans that wait or are made now, and the newest of all if it failed."""
    open_ones = list(plans().filter(state__in=(Plan.State.WAITING, Plan.State.RUNNING)))
    newest = plans().first()
    return [newest] if newest and not open_ones and newest.state == Plan.State.FAILED else open_ones
