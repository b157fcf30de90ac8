"""Celery tasks: the calls of runs, runs that nobody works on, the deletion of old rows. Every task may run twice."""

from __future__ import annotations

from uuid import UUID

from celery import shared_task
from django.db.models.functions import Now

from marketplace.calls import close_purse
from marketplace.trials import services
from marketplace.trials.models import Trial
from marketplace.trials.queue import RUN, enqueue_run
from marketplace.trials.running import work_on

BATCH = 50


@shared_task(name=RUN)
def run_trial(trial_id: str) -> None:
    """Work on one run for some minutes, then let another task go on."""
    if work_on(UUID(trial_id)):
        enqueue_run(UUID(trial_id))


@shared_task
def resume_trials() -> None:
    """Go on with runs whose worker is gone, and close purses that a killed worker left open."""
    idle = Trial.objects.filter(state=Trial.State.RUNNING, leased_until__lte=Now()).order_by("leased_until")
    for trial_id in idle.values_list("pk", flat=True)[:BATCH]:
        enqueue_run(trial_id)
    left_open = Trial.objects.filter(state=Trial.State.ENDED, purse__revoked_at=None).select_related("purse")
    for trial in left_open[:BATCH]:
        close_purse(trial.purse)


@shared_task
def delete_old_rows() -> None:
    """Delete rows of runs that ended 30 days ago."""
    services.delete_old_rows()
