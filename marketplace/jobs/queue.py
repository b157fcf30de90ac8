"""The message that wakes a worker up. It may be lost: beat looks for open work."""

from __future__ import annotations

import logging

from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError

WORK = "marketplace.jobs.work"
QUEUE = "jobs"
EXPIRES_SECONDS = 30  # a message that waited longer is one too many: every worker looks for all work

logger = logging.getLogger(__name__)


def wake() -> None:
    """Let a worker look for work once this transaction is committed."""
    transaction.on_commit(_send, robust=True)


def _send() -> None:
    try:
        current_app.send_task(WORK, queue=QUEUE, ignore_result=True, expires=EXPIRES_SECONDS)
    except OperationalError:
        logger.warning("work waits for beat: the queue cannot be reached")
