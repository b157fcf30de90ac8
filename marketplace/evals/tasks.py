"""Celery tasks of evaluations. They have a queue and a worker of their own: no run keeps the books waiting."""

from __future__ import annotations

import logging
from uuid import UUID

from celery import shared_task
from celery.exceptions import SoftTimeLimitExceeded
from django.db import Error
from django.db.models import Q
from django.utils import timezone

from marketplace.evals.clearing import clear_versions
from marketplace.evals.measuring import measure
from marketplace.evals.models import EvalRun
from marketplace.evals.runs import MAX_AGE, QUEUED_SECONDS, RUN_TASK, claim_run, fail_run
from marketplace.evals.sets import expire_abandoned_sets

log = logging.getLogger(__name__)

HARD_SECONDS = int(MAX_AGE.total_seconds())


# Acknowledged at once: a broker that hands a long task out again would only find the run claimed. What a killed worker
# leaves, `resume_evaluations` finds by its claim.
@shared_task(
    name=RUN_TASK,
    acks_late=False,
    time_limit=HARD_SECONDS,
    soft_time_limit=HARD_SECONDS - 60,
)
def run_evaluation(run_id: str) -> None:
    """Measure one run to its end, unless another worker does."""
    run = claim_run(UUID(run_id))
    if run is None:
        return
    try:
        if timezone.now() - run.created_at > MAX_AGE:
            fail_run(run, "it was not done within six hours")
            return
        measure(run)
    except SoftTimeLimitExceeded:
        fail_run(run, "it was not done within six hours")
    except Error:
        raise  # the database is away: the run goes on when its claim has expired
    except Exception as error:
        # The exception's own text is left out: it may quote a row.
        log.error("evaluation %s stopped: %s", run_id, type(error).__name__)
        fail_run(run, "a fault of the platform")


@shared_task(name="marketplace.evals.tasks.expire_abandoned_uploads")
def expire_abandoned_uploads() -> int:
    """End uploads of sets that nobody completed; return how many."""
    return expire_abandoned_sets()


@shared_task(name="marketplace.evals.tasks.clear_versions")
def clear_versions_for_checkpoints() -> int:
    """Start runs of versions on checkpoints that they are not cleared for; return how many."""
    return clear_versions()


@shared_task(name="marketplace.evals.tasks.resume_evaluations")
def resume_evaluations() -> int:
    """Queue open runs that no living worker has; return how many."""
    free = Q(claimed_until=None) | Q(claimed_until__lt=timezone.now())
    waiting = EvalRun.objects.filter(free, state__in=EvalRun.OPEN).order_by("created_at")
    for run_id in (found := list(waiting.values_list("pk", flat=True)[:10])):
        run_evaluation.apply_async((str(run_id),), expires=QUEUED_SECONDS)
    return len(found)
