"""Celery task: old runs end. It may run twice."""

from __future__ import annotations

from celery import shared_task

from billing.budgets.runs.services import forget_old_runs


@shared_task
def forget_runs() -> int:
    """Delete runs that ended long ago; return how many. Their calls stay in usage."""
    return forget_old_runs()
