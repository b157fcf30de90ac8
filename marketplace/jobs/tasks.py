"""Celery tasks. They have a queue and a worker of their own; every task may run twice."""

from __future__ import annotations

from celery import shared_task

from marketplace.jobs import files, lifecycle, predictions, running
from marketplace.jobs.queue import WORK, wake


# Acknowledged at once: what a killed worker leaves, the next one finds by its claims.
@shared_task(name=WORK, acks_late=False)
def work() -> None:
    """Make calls for a minute, then let another message go on."""
    running.work()


@shared_task
def resume_work() -> None:
    """Wake a worker up while something is open, and end keys that a killed worker left."""
    lifecycle.close_purses()
    if running.is_left():
        wake()


@shared_task
def delete_old_jobs() -> None:
    """Delete files, predictions and lines whose time is over."""
    files.delete_expired_files()
    predictions.delete_expired_predictions()
    lifecycle.delete_old_lines()
