"""Celery tasks: the meaning and the spellings of listings, for the search; prices that begin, for its filters."""

from __future__ import annotations

import logging

from celery import shared_task
from django.core.cache import cache
from django.db import connection

from marketplace.catalog.search import spelling
from marketplace.catalog.search.embedding import embed_listings

log = logging.getLogger(__name__)
_RUN_SECONDS = 60.0
_RUNNING = "catalog-embedding"
# A longer silence of the worker is made up for by the hourly round of standings.
_BEGIN = """
SELECT catalog_list_models(ARRAY(
    SELECT model_id FROM catalog_price WHERE effective_at > now() - interval '5 minutes' AND effective_at <= now()))
"""


@shared_task
def embed_new_listings() -> int:
    """Embed listings whose text is new; one run at a time, because each loads the encoder."""
    if not cache.add(_RUNNING, 1, timeout=2 * _RUN_SECONDS):
        return 0
    try:
        if done := embed_listings(seconds=_RUN_SECONDS):
            log.info("embedded %d listings for the search", done)
        return done
    finally:
        cache.delete(_RUNNING)


@shared_task
def reconcile_spellings() -> int:
    """Forget the words that no listing uses any more."""
    return spelling.reconcile()


@shared_task
def begin_announced_prices() -> None:
    """Let the filters of the catalogue follow prices that were announced and have begun."""
    with connection.cursor() as cursor:
        cursor.execute(_BEGIN)
