"""Vectors of listings: a listing is found by its words at once, and by its meaning seconds later."""

from __future__ import annotations

import logging
import time

from django.conf import settings

from marketplace.catalog.models import Model
from marketplace.catalog.search import encoder, vectors
from marketplace.catalog.search.passages import cut

log = logging.getLogger(__name__)
BATCH = 20  # listings whose texts are in memory at once
_said: set[str] = set()  # reasons that this process has logged


def embed_listings(*, seconds: float) -> int:
    """Make the passages of listings whose text is new, for about so long; return how many listings were done.

    Idempotent: what is stored says of which text and encoder it was made. The encoder is loaded for it and let go.
    """
    if not vectors.has_vectors() or not vectors.stale(encoder=encoder.NAME, limit=1):
        return 0
    try:
        loaded = encoder.load(settings.ENV.search_encoder)
    except encoder.EncoderMissing as missing:
        if str(missing) not in _said:
            _said.add(str(missing))
            log.warning("new listings are found by words and spelling, not by meaning: %s", missing)
        return 0
    done, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline and (digests := dict(vectors.stale(encoder=encoder.NAME, limit=BATCH))):
        texts = Model.objects.filter(pk__in=digests).only("title", "summary", "industry", "tags", "card_markdown")
        stored = [_embed(loaded, model, digests[model.pk]) for model in texts]
        done += sum(stored)
        if not any(stored):  # every text was changed meanwhile: the next run sees them as they are
            break
    return done


def _embed(loaded: encoder.Encoder, model: Model, digest: str) -> bool:
    passages = cut(
        title=model.title,
        summary=model.summary,
        industry=model.industry,
        tags=model.tags,
        card_markdown=model.card_markdown,
    )
    found = [vectors.literal(loaded.encode(passage)) for passage in passages]
    return vectors.replace_passages(model_id=model.pk, encoder=encoder.NAME, digest=digest, vectors=found)
