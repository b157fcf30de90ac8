"""The message that lets a worker go on with a run. It may be lost: beat looks for runs that nobody works on."""

from __future__ import annotations

import logging
from uuid import UUID

from celery import current_app
from kombu.exceptions import OperationalError

RUN = "marketplace.trials.run_trial"

logger = logging.getLogger(__name__)


def enqueue_run(trial_id: UUID) -> None:
    """Ask a worker to go on with a run, now if the queue can be reached."""
    try:
        current_app.send_task(RUN, [str(trial_id)], ignore_result=True)
    except OperationalError:
        logger.warning("trial %s waits for beat: the queue cannot be reached", trial_id)
