"""Celery tasks. Each is idempotent: it may run twice, or be killed at any line."""

from __future__ import annotations

import logging

from celery import shared_task

from marketplace.catalog.models import Standing
from marketplace.catalog.standings import LAST_PLACE
from marketplace.standing import services

logger = logging.getLogger(__name__)


@shared_task(name="marketplace.standing.tasks.rank_models")
def rank_models() -> None:
    """Give every listed model its place."""
    logger.info("%d models have another standing", services.rank_models())


@shared_task(name="marketplace.standing.tasks.rank_new_models")
def rank_new_models() -> None:
    """Do so soon after a model was published: until then it is behind all others."""
    if Standing.objects.filter(place=LAST_PLACE).exists():
        services.rank_models()
