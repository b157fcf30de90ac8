"""Celery tasks: the judgement of promises."""

from __future__ import annotations

import logging

from celery import shared_task

from marketplace.promises import services

logger = logging.getLogger(__name__)


@shared_task(time_limit=1_800, soft_time_limit=1_700)
def keep_promises() -> None:
    """Judge the months that are over and pay their refunds; a killed run is continued by the next."""
    if judged := services.keep_promises():
        logger.info("judged %d months of promises", judged)
