"""Celery tasks: the daily trees."""

from __future__ import annotations

import logging

from celery import shared_task

from marketplace.receipts import services
from marketplace.vault.errors import NotBootstrapped

logger = logging.getLogger(__name__)


@shared_task
def publish_days() -> None:
    """Add new charges to the trees of their days and publish the roots; a killed run is continued by the next."""
    try:
        for head in services.publish_days():
            logger.info("published head %d: %d receipts of %s", head.sequence, head.size, head.day)
    except NotBootstrapped:
        logger.warning("there is no receipt key yet: run `manage.py bootstrap_vault`")
