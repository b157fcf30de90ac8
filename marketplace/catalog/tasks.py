"""Celery tasks: the meaning and the spellings of listings, for the search."""

from __future__ import annotations

import logging

from celery import shared_task
from django.core.cache import cache

from marketplace.catalog.search import spelling
from marketplace.catalog.search.embedding import embed_listings

log = logging.getLogger(__name__)
_RUN_SECONDS = 60.0
_RUNNING = "catalog-embedding"


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
